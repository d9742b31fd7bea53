"""The context of a build: a folder with the Dockerfile, wheels of locked versions, pip, and a drafter's models.

Everything that needs a network is fetched here, before the build, which then runs without one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.errors import PlanError
from dovetail.image.manifest import write_models
from dovetail.image.targets import Target
from dovetail.plan import Plan

_TORCH = "torch==2.13.0"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_LINES = 3  # of pip's complaint

Run = Callable[[Sequence[str]], None]


def image_folder(source: Path) -> Path:
    """The folder `deploy/image` of the checkout `source`. Raises `PlanError` if it is no checkout of Dovetail."""
    folder = source / "deploy" / "image"
    if not (folder / "Dockerfile").is_file():
        raise PlanError(f"{source} is no checkout of Dovetail: it has no deploy/image/Dockerfile; set --source FOLDER")
    return folder


def write_context(target: Target, source: Path, folder: Path, plan: Plan | None, run: Run | None = None) -> None:
    """Write the context of `target` into the empty `folder`. `plan`: with the drafter, for a target that has one.

    Raises `PlanError` if a package cannot be had, and as `write_models` does.
    """
    run = run or run_pip
    image = image_folder(source)
    shutil.copyfile(image / "Dockerfile", folder / "Dockerfile")
    wheels = folder / "wheels"
    wheels.mkdir()
    if plan is not None:
        write_models(plan, folder / "models")
    run(["download", *_locked(image / "pip.lock"), "--dest", str(folder)])
    next(folder.glob("pip-*.whl")).rename(folder / "pip.whl")
    for lock in target.locks:
        run(["download", *_locked(image / lock), "--dest", str(wheels)])
    if target.torch:
        _download_torch(wheels, run)
    run(["wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)])


def _locked(lock: Path) -> list[str]:
    return ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]


def _download_torch(wheels: Path, run: Run) -> None:
    """The build for CPU, as `make` installs it: from pip's own index, else from PyTorch's."""
    fetch = ["download", "--no-deps", "--dest", str(wheels)]
    try:
        run([*fetch, f"{_TORCH}+cpu"])
    except PlanError:
        run([*fetch, "--index-url", _CPU_INDEX, _TORCH])


def run_pip(arguments: Sequence[str]) -> None:
    """Run pip of this Python. Raises `PlanError` with the end of its complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        complaint = " ".join(done.stderr.strip().splitlines()[-_LINES:])
        raise PlanError(f"pip {arguments[0]} failed: {complaint or f'exit code {done.returncode}'}")
