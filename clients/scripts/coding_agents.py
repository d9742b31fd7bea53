"""What the programs of the coding agents share: a scratch folder with a file, and the agent run in it to its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common import TASK, feature, feature_of_sight, main

HOME = Path("home").absolute()
SCRATCH = Path("scratch").absolute()
FILE = SCRATCH / "chapter.txt"
for folder in (HOME, SCRATCH):
    folder.mkdir(exist_ok=True)
INSTALLED = Path(os.environ["DOVETAIL_INSTALLED"])
TOOLS = os.environ["DOVETAIL_TOOLS"]
REQUEST = TASK["edit_request"].format(path=FILE, tools=TOOLS)
#: The context that agents are told: more than the server has, so that they meet its end.
WINDOW = 1_000_000
#: Where the engine records its answers, by which an agent is stopped in the middle of one.
LOG = Path(os.environ["DOVETAIL_LOG"])
#: How long an agent may take to begin, to end once it is asked to, and the engine to stop after it.
BEGIN_S, END_S, STOP_S = 120, 10, 30


def binary(name: str) -> str:
    """A program of the client's npm package."""
    return str(INSTALLED / "node_modules" / ".bin" / name)


def python_program(name: str) -> str:
    """A program of the client's Python package."""
    return str(INSTALLED / "bin" / name)


def write(file: Path, text: str) -> None:
    """Write a file of settings."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def agent(command: Callable[[str], list[str]], request: str = "", *, sees: bool = False, **variables: str) -> None:
    """Run the agent that `command` makes of a prompt through the tasks. It has nothing but these variables.

    `sees`: whether it has a tool that shows pictures.
    """

    @feature
    def report():
        FILE.write_text(TASK["edit_file"])
        return run(command(request or REQUEST), **variables).strip()

    @feature
    def edited():
        return FILE.read_text()

    if sees:

        @feature_of_sight
        def looked():
            picture = SCRATCH / "red.png"
            picture.write_bytes(base64.b64decode(TASK["pictures"]["red"]))
            return run(command(TASK["look_request"].format(path=picture, tools=TOOLS)), **variables).strip()

    @feature
    def cancelled():
        return _cancelled(command(TASK["slow"]), variables)

    if os.environ.get("DOVETAIL_FIRST") and not request:  # a whole context takes long: one server is enough

        @feature
        def outgrown():
            number = random.randrange(10**6)
            done = _start(command(TASK["grow_request"].format(number=number, tools=TOOLS)), variables)
            return done.communicate()[0][-2000:]

    main()


def run(command: Sequence[str], **variables: str) -> str:
    """Run an agent to its end; returns what it printed to standard output."""
    done = _start(command, variables, stderr=subprocess.PIPE)
    stdout, stderr = done.communicate()
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {(stdout + stderr).strip()[-400:]}")
    return stdout


def _start(command: Sequence[str], variables: Mapping[str, str], stderr: int = subprocess.STDOUT) -> subprocess.Popen:
    node = str(Path(os.environ["DOVETAIL_NODE"]).parent)
    path = f"{node}:{os.environ['PATH']}"
    own = {"HOME": str(HOME), "PATH": path, "LANG": "C.UTF-8", "NO_PROXY": "127.0.0.1", "TERM": "dumb"}
    # For an agent that is this very program.
    told = {name: value for name, value in os.environ.items() if name.startswith("DOVETAIL_")}
    return subprocess.Popen(
        command,
        cwd=SCRATCH,
        env={**told, **own, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def _cancelled(command: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether the engine stops when the agent is stopped in the middle of an answer."""
    before = _answers("stopped")
    slow = _answers("slow")
    process = _start(command, variables)
    try:
        _wait(lambda: _answers("slow") > slow or process.poll() is not None, BEGIN_S)
        if _answers("slow") == slow:
            raise RuntimeError("it did not ask for the answer")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_S)
                break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return _wait(lambda: _answers("stopped") > before, STOP_S)


def _answers(script: str) -> int:
    return sum(json.loads(line)["script"] == script for line in LOG.read_text().splitlines())


def _wait(reached: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.2)
    return reached()
