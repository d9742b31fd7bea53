"""Checks a built image: digests, user and port, a drafter against its manifest and its target, and a trial."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dovetail.errors import CheckpointError, PlanError
from dovetail.image.builder import find_builder, run_builder
from dovetail.image.layout import Layout, read_layout
from dovetail.image.manifest import MODELS, Manifest, check_models, plan_for
from dovetail.image.sandbox import port_of, sandboxed, user_of
from dovetail.image.targets import BY_NAME

_KIND = "io.dovetail.image.kind"
#: Where the target is mounted for a trial.
_TARGET = "/models/served"


class Trial(msgspec.Struct, frozen=True):
    """How the trial starts the server: `arguments` after the image's own, `patience_s` until it is healthy.

    `drafts`: whether drafts have to be accepted.
    """

    arguments: tuple[str, ...] = ()
    patience_s: float = 600.0
    drafts: bool = True


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an image. `compressed`: bytes of its layers. `manifest`: of its drafter, if it has one.

    `trial`: what the trial measured; None without one.
    """

    digest: str
    kind: str
    user: str
    port: int
    compressed: int
    manifest: Manifest | None
    trial: dict[str, object] | None


def check(image: str, target: Path | None, trial: Trial | None) -> Report:
    """Check an image by its name or its layout's folder. `target`: the folder of the model that it is to serve.

    Raises `CheckpointError` and `PlanError` with the first thing that is wrong.
    """
    with _layout(image) as folder:
        layout = read_layout(folder)
        kind = layout.labels.get(_KIND)
        if kind not in BY_NAME:
            raise CheckpointError(f"{image} is no image of Dovetail: its label {_KIND} is {kind!r}")
        user_of(layout.config)
        port = port_of(layout.config)
        manifest = _models(layout, target) if BY_NAME[kind].drafter else None
        result = None if trial is None else _tried(layout, port, target, trial)
    return Report(
        digest=layout.digest,
        kind=kind,
        user=layout.config.user,
        port=port,
        compressed=layout.size,
        manifest=manifest,
        trial=result,
    )


@contextlib.contextmanager
def _layout(image: str) -> Iterator[Path]:
    """The folder of a layout, or of the one that a builder writes of an image that it has."""
    if Path(image).is_dir():
        yield Path(image)
        return
    if image.startswith(("/", ".")):
        raise CheckpointError(f"there is no folder {image}: give the name of an image, or the folder of an OCI layout")
    with tempfile.TemporaryDirectory(prefix="dovetail-image-") as scratch:
        run_builder(find_builder().push(image, Path(scratch) / "layout"), "the export of the image")
        yield Path(scratch) / "layout"


def _models(layout: Layout, target: Path | None) -> Manifest:
    """The checked manifest of the drafter inside. Raises as `check_models` does, and for a `target` that it misfits."""
    with tempfile.TemporaryDirectory(prefix="dovetail-image-") as scratch:
        layout.unpack(Path(scratch), MODELS.strip("/"))
        models = Path(scratch) / MODELS.strip("/")
        manifest = check_models(models)
        if target is not None:
            plan_for(manifest, models, target)
    return manifest


def _tried(layout: Layout, port: int, target: Path | None, trial: Trial) -> dict[str, object]:
    """What the trial measured. Raises `PlanError` if the server does not start, answer or draft."""
    model = [] if target is None else [_TARGET]
    command = [*(layout.config.entrypoint or ()), *(layout.config.cmd or ()), *model, *trial.arguments]
    wish = {"command": command, "port": port, "drafts": trial.drafts, "patience_s": trial.patience_s}
    with tempfile.TemporaryDirectory(prefix="dovetail-image-") as scratch:
        root = Path(scratch) / "root"
        layout.unpack(root)
        if target is not None:
            (root / _TARGET.strip("/")).mkdir(parents=True, exist_ok=True)
        Path(scratch).chmod(0o755)
        mounts = {} if target is None else {target: _TARGET}
        return _run(sandboxed(layout.config, root, mounts, ["python3", "-m", "dovetail.image.trial", json.dumps(wish)]))


def _run(command: Sequence[str]) -> dict[str, object]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = " ".join(done.stderr.strip().splitlines()[-1:]) or f"exit code {done.returncode}"
        raise PlanError(f"the image does not start: {last}") from None
    if result["problem"] is not None:
        raise PlanError(f"the image was started and is not right: {result['problem']}")
    return result
