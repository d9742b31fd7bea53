"""The manifest of a drafter in an image: which target it is for, how it drafts, and the SHA-256 of every file.

A folder of models has `manifest.json`, `serve.yaml` (the settings that the server starts with), `drafter/` and
`target/`, which holds the target's config.json alone: enough to check again that the drafter fits.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from dovetail.checkpoints.files import read_bounded
from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import Plan, resolve

NAME = "manifest.json"
#: Where the folder is in an image.
MODELS = "/models"
_LONGEST = 8_000_000  # bytes of a manifest
_BLOCK = 1 << 20


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its path below the folder of models, its bytes and its SHA-256 in hexadecimal."""

    path: str
    size: int
    sha256: str


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint as its maker calls it. `revision`: None if it was given as a folder without one."""

    name: str
    revision: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an image with a drafter promises. `recipes`: the names of the recipes that the plan follows."""

    version: int = 1
    target: Origin
    drafter: Origin
    method: str
    draft_tokens: int
    recipes: tuple[str, ...] = ()
    files: tuple[Content, ...]


def write_models(plan: Plan, folder: Path) -> Manifest:
    """Write the folder of models for `plan`, whose drafter is a folder on this machine.

    Raises `PlanError` if the plan has no drafter with files of its own, or its target is unknown.
    """
    drafter, target = plan.folders.get("drafter"), plan.folders.get("target")
    if plan.drafter is None or drafter is None:
        raise PlanError("vllm-speculative needs a drafter with files of its own: set --drafter FOLDER")
    if target is None:
        raise PlanError("vllm-speculative needs the target's config.json: give MODEL as a folder or a hub id")
    _copy(Path(drafter), folder / "drafter")
    (folder / "target").mkdir(parents=True)
    shutil.copyfile(Path(target) / "config.json", folder / "target" / "config.json")
    method, tokens = plan.value("method"), plan.value("draft_tokens")
    settings = {"engine": "vllm", "drafter": f"{MODELS}/drafter", "method": method, "draft_tokens": tokens}
    (folder / "serve.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    manifest = Manifest(
        target=Origin(_name(plan.value("target")), plan.value("revision")),
        drafter=Origin(_name(plan.drafter.path)),
        method=method,
        draft_tokens=tokens,
        recipes=plan.recipes,
        files=tuple(_contents(folder)),
    )
    (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder of models. Raises `CheckpointError`."""
    file = folder / NAME
    if not file.is_file():
        raise CheckpointError(
            f"{file} is missing: this is no folder of `dovetail image build --target vllm-speculative`"
        )
    try:
        manifest = msgspec.json.decode(read_bounded(file, _LONGEST), type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{file} is no manifest: {error}") from error
    if manifest.version != 1:
        raise CheckpointError(f"{file} has version {manifest.version}; this Dovetail reads version 1")
    return manifest


def check_models(folder: Path) -> Manifest:
    """Check a folder of models: every file against the manifest, and the drafter against the target's config.

    Raises `CheckpointError` for a file that is missing, altered or not listed, and `PlanError` for a drafter that does
    not fit, by the rules of `dovetail plan`.
    """
    manifest = read_manifest(folder)
    _check_files(folder, manifest)
    plan_for(manifest, folder, folder / "target")
    return manifest


def plan_for(manifest: Manifest, folder: Path, target: Path) -> Plan:
    """The plan that serves `target` with the drafter of a folder of models. Raises as `resolve` does."""
    options = {
        "drafter": str(folder / "drafter"),
        "method": manifest.method,
        "draft_tokens": manifest.draft_tokens,
    }
    return resolve(str(target), options, recipe="none", engine="vllm")


def _check_files(folder: Path, manifest: Manifest) -> None:
    present = {content.path: content for content in _contents(folder)}
    for listed in manifest.files:
        content = present.pop(listed.path, None)
        if content is None:
            raise CheckpointError(f"{folder / listed.path} is missing, and the manifest lists it")
        if content.size != listed.size:
            raise CheckpointError(
                f"{folder / listed.path} has {content.size} bytes, and the manifest says {listed.size}: it was altered"
            )
        if content.sha256 != listed.sha256:
            raise CheckpointError(
                f"{folder / listed.path} has SHA-256 {content.sha256}, and the manifest says {listed.sha256}: it was "
                "altered"
            )
    if present:
        raise CheckpointError(f"{folder / min(present)} is not in the manifest")


def _contents(folder: Path) -> Iterator[Content]:
    """Every file of a folder of models but the manifest, in the order of their paths."""
    for file in sorted(folder.rglob("*")):
        path = PurePosixPath(file.relative_to(folder))
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise CheckpointError(f"{file} is a link or a special file: an image's models are plain files")
        if file.is_file() and str(path) != NAME:
            yield Content(str(path), file.stat().st_size, _sha256(file))


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _copy(source: Path, destination: Path) -> None:
    """Copy a checkpoint's files; what links point to is copied, as the hub's cache has links."""
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for each in (destination, *destination.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def _name(path: str) -> str:
    """A hub id as it is; of a folder its last part, because the path on this machine means nothing elsewhere."""
    return PurePosixPath(path).name if path.startswith(("/", ".", "~")) else path


def main(arguments: list[str]) -> int:
    try:
        manifest = check_models(Path(arguments[0]))
    except DovetailError as error:
        print(f"dovetail: {error.message}", file=sys.stderr)
        return 2
    print(f"{manifest.drafter.name} fits {manifest.target.name}: {len(manifest.files)} files as listed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
