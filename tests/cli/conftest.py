"""A tiny pair with random weights, which the embedded engine can run, and the `dovetail` command."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.tokens import tokenizer
from tests.engine import checkpoints
from tests.plan.pair import DRAFTER, TARGET

Dovetail = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's reading and writing end; either may be closed."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.fixture(scope="session", autouse=True)
def no_gpus() -> Iterator[None]:
    """Hides the GPUs of this machine from the plans and servers of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for the servers of the tests, instead of the one in the home folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, small_tokenizer_file: Path) -> Path:
    """A folder with `target` and `drafter`."""
    folder = tmp_path_factory.mktemp("cli")
    target = TARGET | {"eos_token_id": tokenizer(small_tokenizer_file).control["<|im_end|>"]}
    checkpoints.write_target(folder / "target", **target)
    checkpoints.write_drafter(folder / "drafter", target=target, **DRAFTER)
    shutil.copy(small_tokenizer_file, folder / "target" / "tokenizer.json")
    return folder


@pytest.fixture
def dovetail(monkeypatch: pytest.MonkeyPatch) -> Dovetail:
    """Runs `dovetail` with the given arguments and standard input, in this process, because starting one takes a
    second."""

    def run(*arguments: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:
        streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdin", "stdout", "stderr")}
        streams["stdin"].buffer.write(input.encode())
        streams["stdin"].buffer.seek(0)
        with monkeypatch.context() as patch:
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            try:
                code = main([str(argument) for argument in arguments])
            except SystemExit as error:  # of argparse
                code = error.code  # type: ignore[assignment]
        written = []
        for name in ("stdout", "stderr"):
            streams[name].flush()
            written.append(streams[name].buffer.getvalue().decode())  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(list(arguments), code, *written)

    return run


@pytest.fixture(scope="session")
def dovetail_process() -> Dovetail:
    """Runs `dovetail` with the given arguments and standard input, in a process of its own."""

    def run(*arguments: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dovetail", *map(str, arguments)]
        environment = {**os.environ, "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            command, input=input, capture_output=True, text=True, env=environment, timeout=60, check=False
        )

    return run
