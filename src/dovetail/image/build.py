"""Builds an image: base and plan are checked, the context is made, the builder runs; nothing half-built stays."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dovetail import __version__
from dovetail.errors import PlanError
from dovetail.image.base import checked_base
from dovetail.image.builder import find_builder, run_builder
from dovetail.image.context import image_folder, write_context
from dovetail.image.targets import Target
from dovetail.plan import Plan


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to build: `target` on `base`, from the checkout `source`, called `tag`, as a layout in `output` too.

    `plan`: has the drafter, for a target that takes one. `builder`: None for the first that there is.
    """

    target: Target
    base: str
    source: Path
    tag: str
    output: Path | None = None
    plan: Plan | None = None
    builder: str | None = None


def build(order: Order) -> None:
    """Build the image. Raises `PlanError` before anything is built where it can, and leaves nothing if it fails."""
    base = checked_base(order.base)
    image_folder(order.source)
    builder = find_builder(order.builder)
    if order.output is not None and order.output.exists():
        raise PlanError(f"--output {order.output} exists already: remove it, or name another folder")
    revision, timestamp = _commit(order.source)
    arguments = {"BASE": base, "VERSION": __version__, "REVISION": revision}
    with tempfile.TemporaryDirectory(prefix="dovetail-image-") as scratch:
        context = Path(scratch)
        write_context(order.target, order.source, context, order.plan)
        layout = order.output is not None
        run_builder(builder.build(context, order.target.name, order.tag, arguments, timestamp, layout=layout))
    if order.output is not None:
        with _whole(order.output) as folder:
            run_builder(builder.push(order.tag, folder))


@contextlib.contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """A folder beside `output` that becomes `output` if the block succeeds, and is removed if it fails."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".dovetail-", dir=output.parent) as scratch:
        yield Path(scratch) / "layout"
        (Path(scratch) / "layout").rename(output)


def _commit(source: Path) -> tuple[str, int]:
    """The commit of a checkout and its time in seconds; "unknown" and 0 where git does not know it.

    A checkout whose files are not those of the commit is COMMIT-modified, so that no image names files it has not.
    """
    git = shutil.which("git")
    if git is None:
        return "unknown", 0

    def asked(*words: str) -> str | None:
        done = subprocess.run([git, "-C", str(source), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    revision, _, time = (asked("log", "-1", "--format=%H %ct") or "unknown 0").partition(" ")
    modified = asked("status", "--porcelain", "--", "src", "deploy/image", "pyproject.toml")
    return f"{revision}-modified" if modified else revision, int(time)
