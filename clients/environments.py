"""Makes the clients' environments: one folder each, with packages from PyPI (by uv) or from the npm registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clients.catalogue import Environment

_TORCH = "2.13.0"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_NODE = "node@22"  # what the npm packages ask for
_NODE_MAJOR = 22


class SetUpError(Exception):
    """An environment could not be made; the message is the installer's last line."""


class Environments:
    """The environments below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)

    def make(self, environment: Environment) -> Path:
        """The environment's folder; it is made if it is not there yet, or has other packages. Raises `SetUpError`."""
        folder = self._folder / environment.name
        marker, packages = folder / ".made", " ".join(environment.packages)
        if not (marker.is_file() and marker.read_text() == packages):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (self._make_pypi if environment.kind == "pypi" else self._make_npm)(environment, folder)
            marker.write_text(packages)
        return folder

    def python(self, environment: Environment) -> str:
        """The Python that runs the client's programs."""
        return str(self._folder / environment.name / "bin" / "python") if environment.kind == "pypi" else sys.executable

    def node(self) -> str:
        """A node that is new enough: the machine's own, or one from the registry."""
        own = shutil.which("node")
        if own is not None:
            version = subprocess.run([own, "--version"], capture_output=True, text=True).stdout
            if int(version.removeprefix("v").partition(".")[0] or 0) >= _NODE_MAJOR:
                return own
        folder = self._folder / "node"
        node = folder / "node_modules" / "node" / "bin" / "node"
        if not node.exists():
            self._npm(folder, (_NODE,))
        return str(node)

    def versions(self, environment: Environment) -> dict[str, str]:
        """The installed versions of the environment's packages."""
        if environment.kind == "pypi":
            listed = self._run([self._uv(), "pip", "freeze", "--python", self.python(environment)])
            pairs = (line.split("==") for line in listed.splitlines() if "==" in line)
        else:
            pairs = (package.rsplit("@", 1) for package in environment.packages)
        names = {package.split("==")[0].split("[")[0].rsplit("@", 1)[0] or package for package in environment.packages}
        return {name: version for name, version in pairs if name in names}

    def _make_pypi(self, environment: Environment, folder: Path) -> None:
        uv, python = self._uv(), str(folder / "bin" / "python")
        self._run([uv, "venv", "-q", "--allow-existing", "--python", environment.python or sys.executable, str(folder)])
        install = [uv, "pip", "install", "-q", "--python", python]
        if environment.torch:
            # First, alone and exact, so that no resolver brings CUDA's packages.
            wheels = [
                flag for where in os.environ.get("PIP_FIND_LINKS", "").split() for flag in ("--find-links", where)
            ]
            try:
                self._run([*install, *wheels, f"torch=={_TORCH}+cpu"])
            except SetUpError:
                self._run([*install, "--index-url", _CPU_INDEX, f"torch=={_TORCH}"])
        self._run([*install, *environment.packages])

    def _make_npm(self, environment: Environment, folder: Path) -> None:
        self._npm(folder, environment.packages)

    def _npm(self, folder: Path, packages: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        flags = ["--no-audit", "--no-fund", "--loglevel=error"]
        self._run(["npm", "install", "--prefix", str(folder), *flags, *packages], cwd=folder)

    def _uv(self) -> str:
        folder = self._folder / "uv"
        if not (folder / "bin" / "uv").exists():
            self._run([sys.executable, "-m", "venv", str(folder)])
            self._run([str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "uv"])
        return str(folder / "bin" / "uv")

    def _run(self, command: list[str], cwd: Path | None = None) -> str:
        # uv takes a newer Python of pyenv's only from the path.
        newer = map(str, Path.home().glob(".pyenv/versions/*/bin"))
        path = os.pathsep.join((os.environ["PATH"], *newer))
        variables = {**os.environ, "PATH": path, "UV_CACHE_DIR": str(self._folder / "uv-cache")}
        try:
            done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
        except OSError as error:
            raise SetUpError(f"{command[0]}: {error.strerror}") from error
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise SetUpError(lines[-1] if lines else f"{command[0]} ended with status {done.returncode}")
        return done.stdout
