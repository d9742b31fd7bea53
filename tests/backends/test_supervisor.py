"""The supervisor ends its program with all descendants when the owner dies, and exits when the program does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.backends.supervised import supervisor
from tests.backends.vllm_program import alive

PATIENCE_S = 30.0
#: For programs that do not listen.
NO_SOCKET = Path("/no/such/socket")
Supervised = Callable[..., "subprocess.Popen[bytes]"]
#: A process with a child in a session of its own, which has one too; all write their ids into a file.
FAMILY = """
import os, signal, subprocess, sys, time
file, depth, stubborn = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["stubborn"]
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth:
    subprocess.Popen([sys.executable, "-c", open(file + ".py").read(), file, str(depth - 1), *sys.argv[3:]],
                     start_new_session=True)
with open(file, "a") as out:
    out.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def words(*argv: str, pause: float = 0, grace: float = 5, socket: Path = NO_SOCKET) -> list[str]:
    return [sys.executable, "-I", "-S", supervisor.__file__, *map(str, (pause, grace, socket)), *argv]


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            words(*argv, **options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:  # which closes its pipes
            pass


def family(folder: Path, *words: str) -> list[str]:
    file = folder / "pids"
    (folder / "pids.py").write_text(FAMILY)
    return [sys.executable, "-c", FAMILY, str(file), "2", *words]


def pids(folder: Path, count: int = 3) -> list[int]:
    until(lambda: (folder / "pids").exists() and len((folder / "pids").read_text().split()) == count)
    return [int(word) for word in (folder / "pids").read_text().split()]


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


@pytest.mark.parametrize(("code", "seen"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_its_exit_code_is_the_programs(supervised: Supervised, code: str, seen: int) -> None:
    assert supervised(sys.executable, "-c", code).wait(PATIENCE_S) == seen


def test_a_program_that_cannot_be_run_is_reported(supervised: Supervised) -> None:
    process = supervised("/no/such/program")
    assert process.wait(PATIENCE_S) == 127
    assert process.stdout is not None
    assert process.stdout.read() == b"/no/such/program cannot be run: No such file or directory\n"


def test_closing_the_pipe_ends_all(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(*family(tmp_path))
    everybody = pids(tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert gone(everybody)


def test_processes_that_ignore_sigterm_are_killed(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(*family(tmp_path, "stubborn"), grace=0.2)
    everybody = pids(tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert gone(everybody)


def test_an_owner_that_died_before_the_start() -> None:
    """The program handles SIGTERM from its first moment on."""
    for _ in range(10):
        done = subprocess.run(words("sleep", "600", grace=2), stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_descendants_end_with_the_program(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(*family(tmp_path, "stubborn"))
    everybody = pids(tmp_path)
    child = next(int(line) for line in children(process.pid))
    os.kill(child, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert gone(everybody)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_signal_to_the_supervisor_ends_all(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(*family(tmp_path))
    everybody = pids(tmp_path)
    process.terminate()
    process.wait(PATIENCE_S)
    assert gone(everybody)


def test_the_program_ends_with_a_killed_supervisor(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(sys.executable, "-c", FAMILY, str(tmp_path / "pids"), "0")
    everybody = pids(tmp_path, 1)
    process.kill()
    until(lambda: gone(everybody))


OWNER = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def listening(tmp_path: Path) -> Path:
    """A file in place of a socket, in a folder of its own."""
    (tmp_path / "socket").mkdir()
    (tmp_path / "socket" / "vllm").touch()
    return tmp_path / "socket" / "vllm"


def test_an_owner_that_is_killed_leaves_no_process(tmp_path: Path, listening: Path) -> None:
    argv = words(*family(tmp_path), socket=listening)
    with subprocess.Popen([sys.executable, "-c", OWNER, *argv]) as owner:
        everybody = pids(tmp_path)
        watching = [int(line) for line in children(owner.pid)]
        owner.kill()
        until(lambda: gone([*everybody, *watching]))
    assert not listening.parent.exists()


def test_an_owner_that_is_killed_in_the_pause_leaves_nothing_and_nothing_begins(
    tmp_path: Path, listening: Path
) -> None:
    argv = words(*family(tmp_path), pause=600, socket=listening)
    with subprocess.Popen([sys.executable, "-c", OWNER, *argv]) as owner:
        until(lambda: bool(children(owner.pid)))
        watching = [int(line) for line in children(owner.pid)]
        owner.kill()
        until(lambda: gone(watching))
    assert not listening.parent.exists()
    assert not (tmp_path / "pids").exists()


def test_an_owner_that_died_before_the_start_leaves_no_socket(listening: Path) -> None:
    done = subprocess.run(words("sleep", "600", socket=listening), stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert not listening.parent.exists()


def test_the_socket_stays_while_the_owner_lives(supervised: Supervised, listening: Path) -> None:
    assert supervised("true", socket=listening).wait(PATIENCE_S) == 0
    assert listening.exists()


def test_files_that_cannot_be_removed_stay(listening: Path) -> None:
    (listening.parent / "more").touch()
    for socket in (listening.parent, listening):  # a folder, a socket whose folder is not empty
        command = words("sleep", "600", socket=socket)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")
    assert [file.name for file in listening.parent.iterdir()] == ["more"]


def test_a_pause_has_an_end_and_closing_the_pipe_is_one(supervised: Supervised, tmp_path: Path) -> None:
    assert supervised("true", pause=0.1).wait(PATIENCE_S) == 0
    process = supervised(*family(tmp_path), pause=600)
    until(lambda: b"supervisor.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not (tmp_path / "pids").exists()


def test_the_program_is_in_no_terminals_foreground(supervised: Supervised, tmp_path: Path) -> None:
    process = supervised(*family(tmp_path))
    main = next(pid for pid in pids(tmp_path) if pid in map(int, children(process.pid)))
    assert os.getpgid(main) == main
    assert os.getsid(main) == process.pid != os.getsid(0)
