"""The program `vllm`: where it is, its version, its options and its output, without importing vLLM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.backends.supervised.program import Failure, Progress
from dovetail.backends.vllm import log
from dovetail.backends.vllm.advice import advice, nearest, unknown
from dovetail.errors import PlanError

_ASK = "import sys; sys.path[:1] = []; from importlib.metadata import version; print(version('vllm'))"
_VERSION = re.compile(r"\d+\.\d+\S*")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_PATIENCE_S = 120  # `vllm --version` imports all of vLLM, which takes ten seconds or more


def find(requested: str | None) -> str:
    """The program's path: the `requested` one, else beside this Python, else on the PATH. Raises `PlanError`."""
    if requested is not None:
        if not os.access(requested, os.X_OK) or Path(requested).is_dir():
            raise PlanError(
                f"vllm is {requested}, which is not a program: name the file `vllm` in an environment's bin folder"
            )
        return requested
    beside = Path(sys.executable).with_name("vllm")
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("vllm")
    if program is None:
        raise PlanError(
            "vLLM was found neither beside this Python nor on the PATH: pip install 'dovetail[vllm]', or name it with "
            "--vllm FOLDER/bin/vllm"
        )
    return program


def version(program: str) -> str:
    """The version of the vLLM that `program` starts. Raises `PlanError` if it cannot be determined."""
    python = _python(program)
    output = None if python is None else _output([python, "-c", _ASK])
    output = output or _output([program, "--version"])
    match = _VERSION.search((output or "").rpartition("\n")[2])
    if match is None:
        raise PlanError(f"{program} does not say which version of vLLM it is (`{program} --version`)")
    return match[0]


def _python(program: str) -> str | None:
    """The Python in the first line of a script; None if there is none."""
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    match = re.fullmatch(rb"#!\s*(/\S*python[\d.]*)\s*", first)
    return None if match is None else os.fsdecode(match[1])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None


def options(program: str) -> list[str]:
    """All options of `program serve`; none if it does not list them. Takes as long as starting vLLM."""
    return sorted(set(_OPTION.findall(_output([program, "serve", "--help=all"]) or "")))


class VLLM:
    """As in `supervised.program.Program`. `path`: of the program."""

    name, url = "vLLM", "http://vllm"

    def __init__(self, path: str) -> None:
        self._path = path

    def progress(self, line: str) -> Progress | None:
        return log.progress(line)

    def failure(self, lines: Sequence[str]) -> Failure | None:
        return log.failure(lines)

    def last(self, lines: Sequence[str]) -> tuple[str, ...]:
        return log.last(lines)

    def advice(self, failure: Failure) -> list[str]:
        sentences = []
        for option in unknown(failure.error):
            near = nearest(option, options(self._path))
            sentences.append(f"vLLM has no {option}{f': {near}' if near else ''}")
        hint = advice(failure.error, drafter=failure.drafter)
        return sentences if hint is None else [*sentences, hint[0].upper() + hint[1:]]
