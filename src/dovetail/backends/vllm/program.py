"""Finds vLLM's program and asks its version, without importing it here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from dovetail.errors import PlanError

_ASK = "import sys; sys.path[:1] = []; from importlib.metadata import version; print(version('vllm'))"
_VERSION = re.compile(r"\d+\.\d+\S*")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_PATIENCE_S = 120  # `vllm --version` imports all of it, which takes ten seconds where its files are warm


def find(said: str | None) -> str:
    """The program's path: as `said`, else beside this Python, else on the PATH. Raises `PlanError`."""
    if said is not None:
        if not os.access(said, os.X_OK) or Path(said).is_dir():
            raise PlanError(f"vllm is {said}, which is no program: name the file `vllm` of an environment's bin folder")
        return said
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("vllm")
    if found is None:
        raise PlanError(
            "there is no vLLM, neither beside this Python nor on the PATH: pip install 'dovetail[vllm]', or say where "
            "it is with --vllm FOLDER/bin/vllm"
        )
    return found


def version(program: str) -> str:
    """Of the vLLM that `program` starts. Raises `PlanError` where it does not say."""
    python = _python(program)
    said = None if python is None else _output([python, "-c", _ASK])
    said = said or _output([program, "--version"])
    match = _VERSION.search((said or "").rpartition("\n")[2])
    if match is None:
        raise PlanError(f"{program} does not say which version of vLLM it is (`{program} --version`)")
    return match[0]


def _python(program: str) -> str | None:
    """The Python of a script's first line, None where it names none."""
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
    """All options of its `serve`; none where it does not say. Takes as long as its start."""
    return sorted(set(_OPTION.findall(_output([program, "serve", "--help=all"]) or "")))
