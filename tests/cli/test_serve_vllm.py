"""`dovetail serve --engine vllm` and `--engine URL` from outside: one message for each thing that is wrong, an exit
code that is not zero, and nothing left running."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

import dovetail
from dovetail.backends import supervised
from dovetail.cli.external_engines import external_engine
from dovetail.cli.serve import plan_format
from dovetail.cli.startup_progress import StartupProgress
from dovetail.completion import Engine
from dovetail.errors import EngineError
from dovetail.plan import resolve
from tests.backends.remote.fake import Broken, Fake, until
from tests.backends.remote.fake import run as limited
from tests.backends.vllm_program import Run, alive, runs, write
from tests.cli.test_serve import free_port
from tests.plan.pair import DRAFTER

pytestmark = pytest.mark.slow

LOGS = Path(__file__).parents[1] / "backends" / "vllm_logs"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "state"


class Served:
    """`dovetail serve` as a child process, with a fake `vllm` that follows a script."""

    def __init__(self, folder: Path, *script: Run) -> None:
        self.folder = folder / "vllm"
        self.program = write(self.folder, *script)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self, *words: str | Path) -> list[str]:
        engine = ["--engine", "vllm", "--vllm", str(self.program), "--port", str(self.port)]
        return [sys.executable, "-m", "dovetail", "serve", *map(str, words), *engine]

    def refused(self, *words: str | Path, code: int = 2) -> str:
        """The one error message of a server that does not start."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        self.nothing_left()
        assert done.stderr.startswith("dovetail: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    @contextlib.contextmanager
    def running(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        """The child process, once it is ready."""
        command = self.command(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            try:
                with httpx.Client(base_url=self.url, timeout=60) as client:
                    while child.poll() is None:
                        with contextlib.suppress(httpx.HTTPError):
                            if client.get("/health").status_code == 200:
                                break
                        time.sleep(0.02)
                yield child
            finally:
                child.kill()

    def nothing_left(self) -> None:
        ends = time.monotonic() + 30
        while any(Path(run["words"][-1]).parent.exists() or any(map(alive, run["pids"])) for run in runs(self.folder)):
            assert time.monotonic() < ends
            time.sleep(0.05)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def ask(served: Served) -> httpx.Response:
    body = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_answers_and_a_signal_ends_every_process(
    pair: Path, served: Served, state: Path, number: signal.Signals
) -> None:
    with served.running(pair / "target", "--engine-args=--enforce-eager") as child:
        answer = ask(served)
        metrics = httpx.get(f"{served.url}/metrics").text
        child.send_signal(number)
        printed, _ = child.communicate(timeout=60)
    assert (answer.status_code, child.returncode) == (200, 0), printed
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert 'dovetail_engine_restarts_total{model="target"} 0.0' in metrics
    assert 'dovetail_engine_up{model="target"} 1.0' in metrics
    assert "--enforce-eager" in runs(served.folder)[0]["words"]
    assert "loading weights" in printed
    assert str(state / "dovetail" / f"vllm-{served.port}.log") in printed.replace("\n", "")
    served.nothing_left()


def test_draft_metrics_are_requested_only_if_something_drafts(pair: Path, served: Served) -> None:
    """vLLM 0.32 exits if it gets this option and nothing drafts."""
    for drafter in (pair / "drafter", "none"):
        with served.running(pair / "target", "--drafter", drafter):
            pass
        served.nothing_left()
    words = [" ".join(run["words"]) for run in runs(served.folder)]
    assert ["--per-request-spec-decode-metrics=summary" in command for command in words] == [True, False]
    assert ["--speculative-config" in command for command in words] == [True, False]


def test_the_probe_is_shorter_than_speculate_below_context(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(below=40))
    with served.running(pair / "target", "--drafter", pair / "drafter", "--speculate-below-context", "40") as child:
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=60)
    assert "speculation is on: 36 of 72 draft tokens" in printed, "24 tokens, 3 drafts for each"
    assert "WARNING" not in printed


def test_the_guidance_backend_is_checked_at_the_start(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(backend="guidance"))
    with served.running(pair / "target", "--grammar-backend", "guidance") as child:
        assert ask(served).status_code == 200
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=60)
    assert child.returncode == 0, printed
    assert "--structured-outputs-config.backend guidance" in " ".join(runs(served.folder)[0]["words"])


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (Run(backend="slow"), "'guidance' structured output backend only supports fast Hugging Face tokenizers (--"),
        (
            Run(backend="guidance", constrained=False),
            "it did not enforce the grammar of a probe; set --grammar-backend xgrammar",
        ),
    ],
)
def test_a_guidance_backend_that_enforces_nothing_is_refused(
    pair: Path, tmp_path: Path, run: Run, complaint: str
) -> None:
    error = Served(tmp_path, run).refused(pair / "target", "--grammar-backend", "guidance")
    assert "does not enforce the schemas of calls: " in error and complaint in error
    assert "reasoning parser" not in error


def test_a_restarted_vllm_is_not_checked_again(pair: Path, tmp_path: Path) -> None:
    """Its command is the same, and requests wait for it."""
    served = Served(tmp_path, Run(backend="guidance"), Run(backend="guidance", constrained=False))
    with served.running(pair / "target", "--grammar-backend", "guidance") as child:
        os.kill(runs(served.folder)[0]["pids"][0], signal.SIGKILL)
        while httpx.get(f"{served.url}/health", timeout=60).status_code == 200:
            time.sleep(0.02)
        assert ask(served).status_code == 200
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == 0


def test_killing_the_server_leaves_no_process(pair: Path, served: Served) -> None:
    with served.running(pair / "target") as child:
        child.kill()
        child.wait(30)
    served.nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_loading_leaves_no_process(
    pair: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    served = Served(tmp_path, Run(silent=True))
    with subprocess.Popen(served.command(pair / "target"), stdout=subprocess.PIPE, text=True) as child:
        try:
            while not runs(served.folder):
                assert child.poll() is None
                time.sleep(0.05)
            child.send_signal(number)
            child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == code
    served.nothing_left()


def test_a_crash_is_reported_and_shown_by_health(pair: Path, served: Served) -> None:
    with served.running(pair / "target") as child:
        os.kill(runs(served.folder)[0]["pids"][0], signal.SIGKILL)
        while httpx.get(f"{served.url}/health", timeout=60).status_code == 200:
            time.sleep(0.02)
        assert ask(served).status_code == 200, "it waits"
        assert httpx.get(f"{served.url}/health", timeout=60).status_code == 200
        assert 'dovetail_engine_restarts_total{model="target"} 1.0' in httpx.get(f"{served.url}/metrics").text
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "vLLM died. vLLM ended while serving, killed (SIGKILL)" in printed
    assert "vLLM is back" in printed
    served.nothing_left()


#: A server that restarts its engine at once.
IMPATIENT = """
import sys
from dovetail.backends.supervised import engine
from dovetail.cli.main import main

engine.FIRST_DELAY_S = 0.01
sys.exit(main())
"""


def test_an_engine_that_keeps_crashing_ends_the_server(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(), Run(log=("RuntimeError: broken",), dies=1))
    command = [sys.executable, "-c", IMPATIENT, *served.command(pair / "target")[3:]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            while not runs(served.folder) or httpx.get(f"{served.url}/health", timeout=60).status_code != 200:
                time.sleep(0.02)
            os.kill(runs(served.folder)[0]["pids"][0], signal.SIGKILL)
            _, complaints = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 2
    assert "dovetail: vLLM died 5 times, the last time: vLLM ended while starting, exit code 1" in complaints
    served.nothing_left()


#: A server that kills its engine early, with a console in ASCII.
HASTY = """
import sys
from dovetail.backends.supervised import child, engine
from dovetail.cli.main import main

engine.FIRST_DELAY_S, child.GRACE_S = 0.01, 2.0
sys.stdout.reconfigure(encoding="ascii")
sys.exit(main())
"""


@contextlib.contextmanager
def hasty(served: Served, target: Path) -> Iterator[subprocess.Popen[str]]:
    """The child process, once it is ready; only its standard output is a pipe."""
    command = [sys.executable, "-c", HASTY, *served.command(target)[3:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            while child.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{served.url}/health", timeout=60).status_code == 200:
                        break
            yield child
        finally:
            child.kill()


def test_a_second_signal_does_not_interrupt_the_shutdown(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(stubborn=True))
    with hasty(served, pair / "target") as child:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(httpx.HTTPError):
            while True:  # until the server has ended, and its engine is about to
                httpx.get(f"{served.url}/health", timeout=60)
        for number in (signal.SIGINT, signal.SIGTERM):
            time.sleep(0.3)
            child.send_signal(number)
        assert child.wait(60) == 0
    assert not any(alive(pid) for run in runs(served.folder) for pid in run["pids"])


@pytest.mark.parametrize("closed", [False, True])
def test_a_closed_console_does_not_prevent_a_restart(pair: Path, tmp_path: Path, closed: bool) -> None:
    served = Served(tmp_path, Run(log=("Loading: \u2588\u2588 x",)), Run())
    with hasty(served, pair / "target") as child:
        assert child.stdout is not None
        if closed:
            child.stdout.close()
        os.kill(runs(served.folder)[0]["pids"][0], signal.SIGKILL)
        while len(runs(served.folder)) == 1:
            assert child.poll() is None
            time.sleep(0.02)
        assert ask(served).status_code == 200
        printed = ""
        while not closed and "vLLM is back" not in printed:
            printed += (line := child.stdout.readline())
            assert line
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert closed or "Loading: ?? x" in printed
    served.nothing_left()


def test_a_full_disk_is_no_error() -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        watching = StartupProgress(Console(file=full), "vLLM")
        watching.say("one \u2588")
        watching.progress(supervised.Progress("load"), 0)
        with contextlib.suppress(OSError):
            full.close()


# --- bad input --------------------------------------------------------------------------------------------------------


def test_no_such_model(served: Served) -> None:
    assert "there is no folder" in served.refused("/no/such/model")
    assert "there is no folder org/nothing" in served.refused("org/nothing")


class Gated(http.server.BaseHTTPRequestHandler):
    """A hub on which every model is gated."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET


@pytest.mark.parametrize("model", ["org/gated", "moonshotai/Kimi-K2.5"])
def test_no_access(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gated) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_address[1]}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        complaint = served.refused(model)
        hub.shutdown()
    assert f"no access to {model}: it is gated" in complaint


def test_half_a_checkpoint(served: Served, pair: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(pair / "target", half)
    weights = (half / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(weights[:1000])
    assert "model.safetensors" in served.refused(half)
    (half / "model.safetensors").unlink()
    assert f"{half} is incomplete: it holds no weights" in served.refused(half)


def test_a_drafter_for_another_model(served: Served, pair: Path, tmp_path: Path) -> None:
    other = tmp_path / "drafter"
    shutil.copytree(pair / "drafter", other)
    config = json.loads((other / "config.json").read_text())
    assert config["transformer_layer_config"]["hidden_size"] == DRAFTER["transformer_layer_config"]["hidden_size"]
    config["transformer_layer_config"]["hidden_size"] *= 2
    (other / "config.json").write_text(json.dumps(config))
    complaint = served.refused(pair / "target", "--drafter", other)
    assert "hidden" in complaint


def test_a_port_in_use(served: Served, pair: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", served.port))
        taken.listen()
        assert f"cannot listen on 127.0.0.1:{served.port}" in served.refused(pair / "target")
    assert runs(served.folder) == []


def test_not_enough_memory(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(log=tuple((LOGS / "not_enough_memory.txt").read_text().splitlines()), dies=1))
    complaint = served.refused(pair / "target")
    assert "exit code 1: ValueError: Available memory on node 0" in complaint
    assert "Not enough memory: use less, or have more: a shorter --context" in complaint


def test_an_engine_that_dies_while_loading(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, Run(log=("one", "RuntimeError: the flux capacitor is empty"), dies=3))
    done = subprocess.run(served.command(pair / "target"), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "  RuntimeError: the flux capacitor is empty\n" in done.stdout
    assert "dovetail: vLLM ended while starting, exit code 3" in done.stderr
    served.nothing_left()


def test_an_unknown_option(served: Served, pair: Path) -> None:
    complaint = served.refused(pair / "target", "--engine-args=--enforce-eagr")
    assert "vLLM has no --enforce-eagr: did you mean --enforce-eager or --no-enforce-eager?" in complaint
    done = subprocess.run(served.command(pair / "target", "--drafer", "x"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean --drafter" in done.stderr


def test_options_of_vllm_that_are_settings_are_refused(served: Served, pair: Path) -> None:
    complaint = served.refused(pair / "target", "--engine-args=--max-model-len 10")
    assert "use the setting --context instead of --max-model-len" in complaint


def test_no_vllm(served: Served, pair: Path) -> None:
    served.program.unlink()
    assert "which is not a program" in served.refused(pair / "target")


def test_a_vllm_that_is_too_old(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path)
    write(served.folder, version="0.8.1")
    assert "vLLM 0.8.1 is older than the versions that commands can be for: 0.32, 0.33" in served.refused(
        pair / "target"
    )


# --- a server that runs -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(folder: Path, run: Run, port: int | None = None) -> Iterator[str]:
    """The URL of a `vllm` that another user started, with the key "theirs"."""
    port = port or free_port()
    words = [str(write(folder, run)), "serve", "/models/target", "--port", str(port)]
    environment = {**os.environ, "VLLM_API_KEY": "theirs"}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment, start_new_session=True) as child:
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"{url}/health")
                    break
            yield url
        finally:
            for pid in runs(folder)[0]["pids"]:
                os.kill(pid, signal.SIGKILL)
            child.wait()


def attached(pair: Path, folder: Path, run: Run, key: str = "theirs") -> tuple[int, str]:
    """The exit code and the output of `dovetail serve --engine URL`, after one request if it becomes ready."""
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(key + "\n")
    port = free_port()
    with server(folder / "other", run) as url:
        options = [
            "--engine",
            url,
            "--engine-api-key-file",
            folder / "key",
            "--port",
            port,
            "--drafter",
            pair / "drafter",
        ]
        command = [sys.executable, "-m", "dovetail", "serve", pair / "target", *options]
        with subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as child:
            try:
                # Without the grammar that keeps calls out, which the program would answer with one token.
                free = {"dovetail": {"strict": "off"}}
                body = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **free}
                while child.poll() is None:
                    with contextlib.suppress(httpx.HTTPError):
                        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60)
                        assert answer.json()["usage"]["completion_tokens"] == 4
                        child.send_signal(signal.SIGINT)
                        break
                printed, _ = child.communicate(timeout=60)
            finally:
                child.kill()
    return child.returncode, " ".join(printed.split())


def test_serve_attaches_to_a_running_server(pair: Path, tmp_path: Path) -> None:
    code, printed = attached(pair, tmp_path, Run())
    assert code == 0, printed
    assert "warning: 127" not in printed
    assert "speculation is on" in printed


def test_a_server_that_enforces_no_schemas_is_refused(pair: Path, tmp_path: Path) -> None:
    code, printed = attached(pair, tmp_path, Run(constrained=False))
    assert code == 2
    assert "does not enforce the schemas of calls: it was started with a reasoning parser" in printed


@pytest.mark.parametrize(("backend", "code"), [("guidance", 0), ("slow", 2)])
def test_a_server_with_the_guidance_backend_is_checked(pair: Path, tmp_path: Path, backend: str, code: int) -> None:
    ended, printed = attached(pair, tmp_path, Run(backend=backend))
    assert ended == code, printed
    assert ("only supports fast Hugging Face tokenizers" in printed) == (backend == "slow")


def test_every_server_is_checked(pair: Path, tmp_path: Path) -> None:
    with server(tmp_path / "one", Run()) as one, server(tmp_path / "two", Run(constrained=False)) as two:
        (tmp_path / "key").write_text("theirs")
        options = ["--engine", f"{one},{two}", "--engine-api-key-file", tmp_path / "key", "--port", free_port()]
        command = [sys.executable, "-m", "dovetail", "serve", pair / "target", *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"{two.removeprefix('http://')} does not enforce the schemas of calls: " in done.stderr


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (Run(constrained=False), "does not enforce the schemas of calls"),
        (Run(tokens=(1, 2)), "control tokens have other ids"),
    ],
)
def test_a_server_that_joins_later_is_checked(pair: Path, tmp_path: Path, run: Run, complaint: str) -> None:
    late, port = free_port(), free_port()
    (tmp_path / "key").write_text("theirs")
    with server(tmp_path / "one", Run()) as one:
        options = ["--engine", f"{one},http://127.0.0.1:{late}", "--engine-api-key-file", tmp_path / "key"]
        command = [sys.executable, "-m", "dovetail", "serve", pair / "target", *options, "--port", port]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            assert child.stderr is not None
            try:
                line = child.stderr.readline().decode()
                assert f"127.0.0.1:{late} cannot be reached" in line and "it joins when it answers" in line
                with server(tmp_path / "late", run, late):
                    line = child.stderr.readline().decode()
                assert f"127.0.0.1:{late} is left out: " in line and complaint in line
                child.send_signal(signal.SIGINT)
                assert child.wait(60) == 0
            finally:
                child.kill()


def test_a_signal_during_a_check_leaves_nothing_open(pair: Path) -> None:
    async def main() -> None:
        async with Fake(answer=unheard) as fake:
            words = ["serve", str(pair / "target"), "--engine", fake.url, "--port", str(free_port())]
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dovetail", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            try:
                while not fake.running:
                    assert child.returncode is None
                    await asyncio.sleep(0.02)
                child.send_signal(signal.SIGINT)
                printed = (await child.communicate())[0].decode()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            assert child.returncode == 130, printed
            assert f"checking {fake.name}" in printed
            assert "Unclosed" not in printed

    limited(main)


async def unheard(body: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def test_another_model_name_is_warned_about_once(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.remote.server.RECHECK_S", 0.01)
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.02)
    output = io.StringIO()

    def times(fake: Fake) -> int:
        return sum(head.split()[1] == "/tokenize" for head in fake.headers)

    async def main() -> None:
        async with Fake() as here, Fake(tokenize={"tokens": [1]}) as late:
            late.pages["/v1/models"] = {"data": [{"id": "other", "owned_by": "vllm", "max_model_len": 512}]}
            await late.stop()
            engine = attached_engine(pair, f"{here.url},{late.url}", output)
            await engine.start()
            await late.start()
            await until(lambda: times(late) == 4)
            await engine.stop()
            for fake, name in ((here, "m"), (late, "other")):
                assert output.getvalue().count(f"{fake.name} serves {name}") == 1

    limited(main)


def test_a_server_lost_during_its_check_is_an_error(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(body: object) -> object:
        raise Broken

    async def main() -> None:
        async with Fake(tokenize=broken) as fake:
            with pytest.raises(
                EngineError, match=f"{fake.name} cannot be tried out: {fake.name} closed the connection"
            ):
                await attached_engine(pair, fake.url, io.StringIO()).start()

    limited(main)


def attached_engine(pair: Path, urls: str, output: io.StringIO, drafter: str = "none") -> Engine:
    console = Console(file=output, width=1000)
    plan = resolve(str(pair / "target"), {"engine": urls, "strict": "off", "drafter": drafter})
    return external_engine(
        plan, plan_format(plan), dovetail.tokenizer(pair / "target"), StartupProgress(console, "vLLM"), console
    )


def test_drafting_is_checked_on_every_server(pair: Path, tmp_path: Path) -> None:
    with server(tmp_path / "one", Run()) as one, server(tmp_path / "two", Run(drafts=None)) as two:
        (tmp_path / "key").write_text("theirs")
        options = ["--engine", f"{one},{two}", "--engine-api-key-file", tmp_path / "key", "--port", free_port()]
        command = [sys.executable, "-m", "dovetail", "serve", pair / "target", *options, "--drafter", pair / "drafter"]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            printed = ""
            while "Ctrl-C stops" not in printed:
                printed += (line := child.stdout.readline())
                assert line, printed
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 0
    printed = " ".join(printed.split())
    assert f"speculation is on at {one.removeprefix('http://')}: " in printed
    assert f"WARNING: nothing is drafted at {two.removeprefix('http://')}, although eagle3 should" in printed


def test_drafting_is_checked_again_on_a_server_that_joins(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.02)
    monkeypatch.setattr("dovetail.backends.vllm.probing.PATIENCE_S", 0.1)
    monkeypatch.setattr("dovetail.backends.vllm.probing._POLL_S", 0.02)
    output = io.StringIO()

    async def main() -> None:
        async with Fake() as here, Fake() as late:
            await late.stop()
            engine = attached_engine(pair, f"{here.url},{late.url}", output, drafter=str(pair / "drafter"))
            await engine.start()
            await late.start()
            warning = f"WARNING: nothing is drafted at {late.name}, although eagle3 should: it has no counters"
            await until(lambda: warning in output.getvalue())
            assert f"drafted at {here.name}" not in output.getvalue(), "it was up at the start"
            assert len(late.received) == 1 and not here.received
            await engine.stop()

    limited(main)


def test_drafting_is_checked_again_after_a_restart(pair: Path, tmp_path: Path) -> None:
    served = Served(tmp_path)
    with served.running(pair / "target", "--drafter", pair / "drafter") as child:
        assert child.stdout is not None
        os.kill(runs(served.folder)[0]["pids"][0], signal.SIGKILL)
        printed = ""
        while "after the restart" not in printed:
            printed += (line := child.stdout.readline())
            assert line, printed
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert "speculation is on after the restart: 36 of 72 draft tokens" in printed


def test_a_servers_model_name_cannot_control_the_terminal(pair: Path, tmp_path: Path) -> None:
    code, printed = attached(pair, tmp_path, Run(model="its\x1b[2J\nname", tokens=(1, 2, 3)))
    assert code == 2
    assert "\x1b" not in printed
    assert "[2J name, whose control tokens have other ids" in printed


@pytest.mark.parametrize("key", ["", "one\ntwo"])
def test_a_key_file_without_a_key_is_refused(pair: Path, tmp_path: Path, key: str) -> None:
    code, printed = attached(pair, tmp_path, Run(), key=key)
    assert code == 2
    assert f"engine_api_key_file {tmp_path / 'key'} must hold one key, on one line" in printed


def test_another_name_is_accepted_and_other_token_ids_refused(pair: Path, tmp_path: Path) -> None:
    code, printed = attached(pair, tmp_path / "name", Run(model="other"))
    assert code == 0 and "serves" not in printed, "its root is of that name"
    code, printed = attached(pair, tmp_path / "ids", Run(tokens=(1, 2, 3)))
    assert code == 2
    assert "whose control tokens have other ids than" in printed


def test_a_wrong_key_and_an_unreachable_server_are_one_message(pair: Path, tmp_path: Path) -> None:
    code, printed = attached(pair, tmp_path, Run(), key="wrong")
    assert code == 2
    assert "does not accept the API key: --engine-api-key-file" in printed
    command = [sys.executable, "-m", "dovetail", "serve", str(pair / "target"), "--port", str(free_port())]
    done = subprocess.run(
        [*command, "--engine", f"http://127.0.0.1:{free_port()}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot be reached" in done.stderr
