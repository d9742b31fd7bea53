"""The result of a run, as it is written and read as JSON; and the file with which a stopped run goes on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from dovetail.bench.figures import Cell, Ratio
from dovetail.bench.plan import Plan
from dovetail.client.run_file import RunFile

_CELL = msgspec.json.Decoder(Cell)


def machine() -> str:
    """Where this process runs."""
    return f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str | None:
    """The commit of Dovetail's own source, with "-dirty" if files differ from it; None outside a checkout of it."""
    git, source = shutil.which("git"), Path(__file__)
    if git is None:
        return None
    tracked, described = (
        subprocess.run([git, "-C", source.parent, *words], capture_output=True, text=True, check=False)
        for words in (
            ("ls-files", "--error-unmatch", source.name),  # an environment may lie in the checkout of something else
            ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        )
    )
    return described.stdout.strip() if tracked.returncode == described.returncode == 0 else None


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that measure."""
    return {name: metadata.version(name) for name in ("aiohttp", "msgspec")} | {"python": platform.python_version()}


class Client(msgspec.Struct, frozen=True):
    """What the client itself took. `cpu_share`: of one core, while it measured."""

    cpu_share: float
    seconds: float


class Result(msgspec.Struct, frozen=True):
    """`machine`: where the client ran. `models`: by endpoint. `commit`: of Dovetail's source, if it runs from one."""

    command: tuple[str, ...]
    version: str
    machine: str
    plan: Plan
    models: dict[str, str | None]
    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    client: Client
    commit: str | None = None
    versions: dict[str, str] = {}

    @property
    def conditions(self) -> str:
        """What it was measured with and where, on one line."""
        of = "" if self.commit is None else f", commit {self.commit}"
        tools = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"Dovetail {self.version}{of} on {self.machine}; {tools}{'; ' if tools else ''}seed {self.plan.seed}; "
            f"{self.plan.tokens} tokens an answer; at least {self.plan.requests} requests a cell; "
            f"the client used {self.client.cpu_share:.0%} of a core"
        )


class Header(msgspec.Struct, frozen=True, tag="dovetail bench 1"):
    """The first line of a resume file. The seed is not compared: a run that goes on draws new beginnings."""

    endpoints: tuple[str, ...]
    models: tuple[str | None, ...]
    plan: Plan


class ResumeFile:
    """The measured cells of an earlier run in `file`, to which new ones are added. Without a file, nothing is written.

    Raises `InvalidRequest` for the file of another run.
    """

    def __init__(self, file: Path | None, header: Header) -> None:
        self._file = RunFile(file, header, "URLs, models or plan", "choose another file", _same)
        self.cells: list[Cell] = self._file.results(_CELL)

    def add(self, cells: Sequence[Cell]) -> None:
        """Write the cells that have figures; the others are measured again."""
        self._file.add([cell for cell in cells if cell.because is None])


def _same(earlier: Header, header: Header) -> bool:
    plan = msgspec.structs.replace(earlier.plan, seed=header.plan.seed)
    return msgspec.structs.replace(earlier, plan=plan) == header
