"""vLLM as an engine: started, watched, restarted and stopped.

`vllm_program` replaces vLLM: a real process that serves real HTTP. vLLM itself runs in tests/vllm.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from dovetail.backends import supervised, vllm
from dovetail.backends.remote import Server, Vocabulary
from dovetail.backends.supervised import socket as sockets
from dovetail.backends.supervised.engine import MOST_CRASHES
from dovetail.backends.vllm import program
from dovetail.completion import Completion, Engine, Sampling, total
from dovetail.errors import EngineBusy, EngineError, InvalidRequest, PlanError
from tests.backends.vllm_program import LOADING, Run, alive, runs, write

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)
PROMPT = (1, 2, 3)


class RecordingReport:
    """A report that keeps what it was given."""

    def __init__(self) -> None:
        self.phases: list[supervised.Progress] = []
        self.messages: list[str] = []

    def progress(self, progress: supervised.Progress, silent: float) -> None:
        self.phases.append(progress)

    def say(self, text: str) -> None:
        self.messages.append(text)


class Setup:
    """An engine whose `vllm` behaves as the `Run`s describe."""

    def __init__(self, folder: Path, *script: Run, silence_s: float = 60, hung_s: float = 300) -> None:
        self.folder, self.report = folder, RecordingReport()
        self.log = folder / "log" / "vllm.log"
        self.log.parent.mkdir()
        self.socket = supervised.Socket()
        arguments = (str(write(folder, *script)), "serve", "target", "--uds", self.socket.path)
        environment = {**os.environ, "VLLM_API_KEY": "secret"}
        launch = supervised.Launch(
            program=vllm.VLLM(arguments[0]), arguments=arguments, environment=environment, key="secret", notes=()
        )
        server = Server(vllm.VLLM.url, Vocabulary(100, (99,), {}), key="secret", path=self.socket.path)
        self.engine = supervised.SupervisedEngine(
            launch, server, self.socket, self.log, self.report, patience_s=60, silence_s=silence_s, hung_s=hung_s
        )

    def run(self, test: Callable[[supervised.SupervisedEngine], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.engine.start()
            try:
                await asyncio.wait_for(test(self.engine), 60)
            finally:
                await self.engine.stop()

        asyncio.run(main())
        self.nothing_left()

    def nothing_left(self) -> None:
        assert not any(alive(pid) for run in runs(self.folder) for pid in run["pids"])
        assert not Path(self.socket.path).parent.exists()


async def ids(engine: Engine, max_tokens: int = 4) -> list[int]:
    return [id for batch in [b async for b in engine.complete(request(max_tokens))] for id in batch.ids]


def request(max_tokens: int) -> Completion:
    return Completion(PROMPT, max_tokens, GREEDY)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.supervised.engine.FIRST_DELAY_S", 0.01)


def test_it_starts_completes_and_leaves_no_process(tmp_path: Path) -> None:
    setup = Setup(tmp_path)

    async def test(engine: supervised.SupervisedEngine) -> None:
        assert isinstance(engine, Engine)
        assert await ids(engine) == [10, 11, 12, 13]
        assert (engine.info.context, engine.info.draft_tokens) == (256, 1)
        assert total(engine.gauges(), "restarts_total") == 0
        assert total(engine.gauges(), "up") == 1

    setup.run(test)
    assert [run["key"] for run in runs(tmp_path)] == ["secret"]
    assert "secret" not in " ".join(runs(tmp_path)[0]["words"])
    assert setup.report.messages == []
    assert setup.report.phases[-1].phase == "ready"
    assert LOADING[0] in setup.log.read_text()
    assert setup.log.stat().st_mode & 0o777 == 0o600


#: Another user tries to listen on a path, and to connect to it.
STRANGER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
for do in "bind", "connect":
    with socket.socket(socket.AF_UNIX) as stranger:
        try:
            getattr(stranger, do)(sys.argv[1])
        except OSError as error:
            print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("listens", [False, True])
def test_other_users_cannot_use_its_socket(listens: bool) -> None:
    where = supervised.Socket()
    where.open()
    assert Path(where.path).parent.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as own:
        if listens:
            own.bind(where.path)
            own.listen()
        python = [sys.executable, "-I", "-S", "-c", STRANGER, where.path]
        messages = subprocess.run(python, capture_output=True, text=True, check=True).stdout
    assert messages.splitlines() == ["Permission denied"] * 2
    where.close()
    assert not Path(where.path).parent.exists()


def test_a_socket_has_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        for length, short in ((78, True), (79, False)):
            folder = f"{own}/".ljust(length, "x")
            os.mkdir(folder)
            monkeypatch.setattr(tempfile, "tempdir", folder)
            path = supervised.Socket().path
            assert Path(path).parents[1] == Path(folder if short else "/tmp")
            assert len(path) <= 103, "as macOS has it"
        monkeypatch.setattr(sockets, "FOLDERS", ())
        with pytest.raises(PlanError, match=r"x is too long for the path of a socket: set TMPDIR to another folder"):
            supervised.Socket()


def test_a_socket_is_where_its_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, locked, file, good = (tmp_path / name for name in ("shared", "locked", "file", "good"))
    for folder, mode in ((shared, 0o777), (locked, 0o500), (good, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    file.touch()
    unfit = [tmp_path / "no", file]
    if not os.access(locked, os.W_OK):  # root may write everywhere
        unfit.append(locked)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(sockets, "FOLDERS", (*map(str, unfit), str(good)))
    where = supervised.Socket()
    assert Path(where.path).parents[1] == good
    where.open()
    where.close()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no"))
    monkeypatch.setattr(sockets, "FOLDERS", (str(shared),))
    with pytest.raises(PlanError, match=r"no is not a writable folder: set TMPDIR to another folder"):
        supervised.Socket()


def test_a_socket_s_folder_may_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    where = supervised.Socket()
    (tmp_path / "own").rmdir()
    with pytest.raises(PlanError, match=r"cannot be created: No such file or directory; set TMPDIR"):
        where.open()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path has at most 103 bytes, and `tmp_path` may be longer than that."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_socket_is_not_where_others_could_replace_it(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = short_folder / "above"
    (above / "own").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(above / "own"))
    for mode, safe in ((0o755, True), (0o777, False), (0o775, False), (0o1777, True)):
        above.chmod(mode)
        assert Path(supervised.Socket().path).parents[1] == Path(above / "own" if safe else "/tmp")
    above.chmod(0o777)
    monkeypatch.setattr(sockets, "FOLDERS", ())
    with pytest.raises(PlanError, match=r"own is open to other users, .* set TMPDIR to another folder"):
        supervised.Socket()


def test_a_socket_takes_no_folder_that_others_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = supervised.Socket()
    folder = Path(where.path).parent
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(PlanError, match="was created by another user"):
        where.open()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PlanError, match="was created by another user"):
        where.open()
    where.close()


def test_two_sockets_are_not_the_same() -> None:
    assert supervised.Socket().path != supervised.Socket().path


NO_MEMORY = (Path(__file__).parent / "vllm_logs" / "not_enough_memory.txt").read_text().splitlines()


def test_an_engine_that_dies_while_loading_says_why(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(log=tuple(NO_MEMORY), dies=1))
    with pytest.raises(EngineError) as raised:
        asyncio.run(setup.engine.start())
    message = raised.value.message
    assert message.startswith("vLLM ended while starting, exit code 1: ValueError: Available memory on node 0")
    assert "Not enough memory: use less" in message
    assert message.endswith(f"Its whole log is {setup.log}")
    assert "cpu_worker.py" in setup.report.messages[0]
    setup.nothing_left()


def test_a_program_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    (tmp_path / "vllm").chmod(0o644)
    with pytest.raises(EngineError, match=r"exit code 127.* Its whole log is") as raised:
        asyncio.run(setup.engine.start())
    assert "Permission denied" in setup.report.messages[0], raised.value


def test_a_child_that_writes_nothing_for_too_long_is_ended(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(silent=True), silence_s=0.5)
    with pytest.raises(EngineError, match=r"wrote nothing for [01] s and was ended"):
        asyncio.run(setup.engine.start())
    setup.nothing_left()


def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(silent=True))

    async def main() -> None:
        starting = asyncio.create_task(setup.engine.start())
        await until(lambda: bool(runs(tmp_path)))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    setup.nothing_left()


def test_a_crash_ends_what_had_begun_and_nothing_else(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(dies_after=3), Run())

    async def test(engine: supervised.SupervisedEngine) -> None:
        seen: list[int] = []
        with pytest.raises(EngineError, match="the engine died while it answered, and is being started again"):
            async for batch in engine.complete(request(50)):
                seen += batch.ids
        assert seen == [10, 11, 12]
        # What comes while it is away waits.
        assert await asyncio.gather(*(ids(engine) for _ in range(5))) == [[10, 11, 12, 13]] * 5
        assert total(engine.gauges(), "restarts_total") == 1

    setup.run(test)
    assert len(runs(tmp_path)) == 2
    assert len({run["words"][-1] for run in runs(tmp_path)}) == 1, "the same socket"
    assert "vLLM died. vLLM ended while serving, killed (SIGKILL)" in setup.report.messages[-2]
    assert "vLLM is back" in setup.report.messages[-1]


@pytest.mark.parametrize("cleaned", [False, True])
def test_it_comes_back_where_its_folder_was_cleaned_away(tmp_path: Path, cleaned: bool) -> None:
    """/tmp may be cleaned up during a restart."""
    setup = Setup(tmp_path, Run(), Run())
    say, folder = setup.report.say, Path(setup.socket.path).parent

    def clean(text: str) -> None:
        if text.startswith("vLLM died"):
            assert folder.exists()
            if cleaned:
                shutil.rmtree(folder)
        say(text)

    async def test(engine: supervised.SupervisedEngine) -> None:
        os.kill(runs(tmp_path)[0]["pids"][0], signal.SIGKILL)
        await until(lambda: "vLLM is back" in "".join(setup.report.messages))
        assert await ids(engine) == [10, 11, 12, 13]

    setup.report.say = clean  # type: ignore[method-assign]
    setup.run(test)


def test_a_request_that_received_nothing_is_sent_again(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(dies_after=0), Run())

    async def test(engine: supervised.SupervisedEngine) -> None:
        assert await ids(engine) == [10, 11, 12, 13]

    setup.run(test)
    assert len(runs(tmp_path)) == 2


def test_a_request_that_kills_it_is_sent_twice_and_its_prompt_three_times(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(dies_after=0))

    async def test(engine: supervised.SupervisedEngine) -> None:
        with pytest.raises(EngineError, match="the engine died while it answered"):
            await ids(engine)
        assert len(runs(tmp_path)) <= 3, "it was sent twice"
        for _ in range(5):  # a client that retries for ever
            with pytest.raises(InvalidRequest, match="the engine died 3 times while it ran this prompt"):
                await ids(engine)
        assert engine.gave_up is not None and not engine.gave_up.done()

    setup.run(test)
    assert len(runs(tmp_path)) <= 4


def test_an_engine_that_dies_five_times_is_given_up(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(dies_after=0), Run(log=("ValueError: no more",), dies=3))

    async def test(engine: supervised.SupervisedEngine) -> None:
        with pytest.raises(EngineError, match="vLLM died 5 times"):
            await ids(engine)
        assert engine.gave_up is not None
        error = await engine.gave_up
        assert error.private  # it quotes the log
        assert error.message.startswith(f"vLLM died {MOST_CRASHES} times, the last time: vLLM ended while")

    setup.run(test)
    assert len(runs(tmp_path)) == MOST_CRASHES


def test_an_engine_that_cannot_be_restarted_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(tmp_path, Run(dies_after=1))

    async def test(engine: supervised.SupervisedEngine) -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        with pytest.raises(EngineError):
            await ids(engine)
        assert engine.gave_up is not None
        assert (await engine.gave_up).message == (
            f"vLLM died {MOST_CRASHES} times, the last time: vLLM cannot be started: Cannot allocate memory"
        )

    setup.run(test)
    assert len(runs(tmp_path)) == 1


def test_an_engine_whose_keeper_failed_is_given_up(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Run(dies_after=1))

    async def test(engine: supervised.SupervisedEngine) -> None:
        def say(text: str) -> None:
            raise RuntimeError("nobody listens")

        setup.report.say = say  # type: ignore[method-assign]
        with pytest.raises(EngineError):
            await ids(engine)
        assert engine.gave_up is not None
        assert (await engine.gave_up).message == "vLLM is watched no longer: RuntimeError: nobody listens"

    setup.run(test)


def test_its_output_is_read_even_if_the_report_fails(tmp_path: Path) -> None:
    lines = (*LOADING, *("x" * 1000 for _ in range(200)), "the end")
    setup = Setup(tmp_path, Run(log=lines))

    def fail(progress: supervised.Progress, silent: float) -> None:
        if progress.phase == "load" and not silent:  # not from the polling
            raise UnicodeEncodeError("ascii", "…", 0, 1, "ordinal not in range(128)")

    async def test(engine: supervised.SupervisedEngine) -> None:
        assert await ids(engine) == [10, 11, 12, 13]

    setup.report.progress = fail  # type: ignore[method-assign]
    setup.run(test)
    assert "the end" in setup.log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found in /proc")
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_killed_supervisor_leaves_no_process_and_is_a_death(tmp_path: Path, stubborn: bool) -> None:
    setup = Setup(tmp_path, Run(stubborn=stubborn), Run())

    async def test(engine: supervised.SupervisedEngine) -> None:
        first = runs(tmp_path)[0]["pids"]
        os.kill(int(Path(f"/proc/{first[0]}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        await until(lambda: "vLLM is back" in "".join(setup.report.messages))
        assert not any(map(alive, first))
        assert await ids(engine) == [10, 11, 12, 13]

    setup.run(test)


@pytest.mark.parametrize("delay", [0, 0.01, 0.1, 0.4])
def test_a_stop_during_the_start_leaves_no_process(tmp_path: Path, delay: float) -> None:
    setup = Setup(tmp_path, Run(log=LOADING * 10))

    async def main() -> None:
        starting = asyncio.create_task(setup.engine.start())
        await asyncio.sleep(delay)
        await setup.engine.stop()
        with pytest.raises(EngineError, match=r"stopped while it started|started already"):
            await starting
        with pytest.raises(EngineError, match="started already"):
            await setup.engine.start()

    asyncio.run(main())
    setup.nothing_left()


def test_a_hanging_engine_is_ended_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.backends.remote import http
    from dovetail.backends.supervised import child

    monkeypatch.setattr(http, "PAGE_S", 0.5)
    monkeypatch.setattr(child, "GRACE_S", 0.3)
    setup = Setup(tmp_path, Run(), Run(), hung_s=1)

    async def test(engine: supervised.SupervisedEngine) -> None:
        os.kill(runs(tmp_path)[0]["pids"][0], signal.SIGSTOP)
        await until(lambda: "vLLM is back" in "".join(setup.report.messages))
        assert "vLLM died. vLLM did not answer for 1 s and was ended" in setup.report.messages[0]
        assert await ids(engine) == [10, 11, 12, 13]

    setup.run(test)
    assert len(runs(tmp_path)) == 2


def test_stop_kills_a_process_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.backends.supervised import child

    monkeypatch.setattr(child, "GRACE_S", 0.3)
    setup = Setup(tmp_path, Run(stubborn=True))

    async def test(engine: supervised.SupervisedEngine) -> None:
        running = asyncio.create_task(ids(engine, 10_000))
        await until(lambda: total(engine.gauges(), "up") == 1)
        await asyncio.sleep(0.2)
        await asyncio.gather(engine.stop(), engine.stop())
        with pytest.raises((EngineBusy, EngineError)):
            await running

    setup.run(test)


#: Starts an engine and sleeps.
OWNER = """
import asyncio, sys
from pathlib import Path
from dovetail.backends.supervised import engine
from tests.backends.test_vllm_engine import Setup

engine.FIRST_DELAY_S = 600

async def main():
    setup = Setup(Path(sys.argv[1]))
    await setup.engine.start()
    print(setup.socket.path, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_an_owner_that_dies_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip()).parent
        assert folder.name.startswith("dovetail-") and folder.exists()
        owner.send_signal(number)
        owner.wait(30)
    ends = time.monotonic() + 30
    while folder.exists() or any(alive(pid) for run in runs(tmp_path) for pid in run["pids"]):
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_an_owner_that_is_killed_during_a_restart_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip()).parent
        first = supervisor_of(owner.pid)
        os.kill(runs(tmp_path)[0]["pids"][0], signal.SIGKILL)
        ends = time.monotonic() + 30
        while supervisor_of(owner.pid) in (first, None):  # until the one that is to start the next
            assert time.monotonic() < ends
            time.sleep(0.02)
        assert folder.exists()
        owner.kill()
    while folder.exists():
        assert time.monotonic() < ends
        time.sleep(0.02)
    assert len(runs(tmp_path)) == 1


def supervisor_of(pid: int) -> int | None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"supervisor.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


# --- the probe --------------------------------------------------------------------------------------------------------


def test_a_probe_counts_draft_tokens(tmp_path: Path) -> None:
    async def test(engine: supervised.SupervisedEngine) -> None:
        finding = await vllm.probe(engine, PROMPT, "eagle3")
        assert finding.warning is None
        assert finding.drafted >= 3 * vllm.PROBE_TOKENS
        assert finding.accepted > 0

    Setup(tmp_path).run(test)


@pytest.mark.parametrize(
    ("drafts", "method", "warning"),
    [(None, "eagle3", "no counters of drafted tokens"), (0, "eagle3", "drafted none"), (0, "ngram", "found nothing")],
)
def test_a_probe_warns_why_nothing_is_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafts: int | None, method: str, warning: str
) -> None:
    from dovetail.backends.vllm import probing

    monkeypatch.setattr(probing, "PATIENCE_S", 1.5)

    async def test(engine: supervised.SupervisedEngine) -> None:
        assert warning in ((await vllm.probe(engine, PROMPT, method)).warning or "")

    Setup(tmp_path, Run(drafts=drafts)).run(test)


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_program_is_found_and_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, version="0.32.0+cpu")
    assert vllm.version(str(path)) == "0.32.0+cpu"
    assert program.options(str(path)) == ["--block-size", "--enforce-eager", "--max-model-len", "--no-enforce-eager"]
    assert vllm.find(str(path)) == str(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert vllm.find(None) == str(path)


def test_a_missing_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(PlanError, match=r"vLLM was found neither.*pip install 'dovetail\[vllm\]'.*--vllm"):
        vllm.find(None)
    with pytest.raises(PlanError, match="which is not a program"):
        vllm.find(str(tmp_path))
    (tmp_path / "vllm").write_text("#!/bin/sh\necho none\n")
    (tmp_path / "vllm").chmod(0o755)
    with pytest.raises(PlanError, match="does not say which version"):
        vllm.version(str(tmp_path / "vllm"))


def test_a_log_is_kept_beside_the_next(tmp_path: Path) -> None:
    from dovetail.backends.supervised.log_file import open_log

    log = tmp_path / "vllm.log"
    for messages in (b"one", b"two", b"three"):
        with open_log(log) as file:
            file.write(messages)
    assert (log.read_bytes(), (tmp_path / "vllm.log.1").read_bytes()) == (b"three", b"two")
    with pytest.raises(PlanError, match="cannot be written"):
        open_log(tmp_path / "no" / "such" / "folder")


def test_a_log_that_nobody_reads_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    from dovetail.backends.supervised.log_file import open_log

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for name in ("fifo", "link"):
        with pytest.raises(PlanError, match="cannot be written"):
            open_log(tmp_path / name)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fifo", "link"]
    open_log(Path("/dev/null")).close()
    assert Path("/dev/null").is_char_device()


def test_a_log_can_be_where_dovetail_itself_writes(tmp_path: Path) -> None:
    code = "import pathlib\nfrom dovetail.backends.supervised.log_file import open_log\nprint('one', flush=True)\n"
    code += "with open_log(pathlib.Path('/dev/stdout')) as log:\n    log.write(b'two')\n"
    command = [sys.executable, "-c", code]
    with open(tmp_path / "out", "wb") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"one\ntwo"
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"one\ntwo"
