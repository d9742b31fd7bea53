"""`--workers`: several processes at one address, their signals, their deaths, and their metrics."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.gateway.measure import set_pace, upstream
from dovetail.cli.key_file import entry_of
from tests.cli.conftest import Dovetail
from tests.cli.test_serve import free_port
from tests.cli.waiting import until

#: Ids of ordinary tokens of the demo's model, which serves without a folder being named.
TOKENS = [(5 + number, "x") for number in range(300)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an engine that answers at once, or at the pace that `set_pace` sets."""
    with upstream(TOKENS, tmp_path_factory.mktemp("upstream")) as port:
        yield port


@contextlib.contextmanager
def workers(count: int, engine: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`dovetail serve --workers COUNT`, and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "dovetail", "serve", "--engine", f"http://127.0.0.1:{engine}", "--strict", "off"]
    command += ["--workers", str(count), "--port", str(port), "--served-model-name", "m", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            until(lambda: child.poll() is not None or "--uds" in options or listens(port))
            yield child, f"http://127.0.0.1:{port}"
        finally:
            child.kill()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def pids(parent: int) -> list[int]:
    """Its children."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 5, **fields}


def completed(url: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body(), timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    printed, complaints = child.communicate(timeout=60)
    return child.returncode, printed, complaints


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


@pytest.mark.slow
def test_all_workers_serve_and_one_that_dies_is_started_again(engine: int) -> None:
    with workers(2, engine) as (child, url):
        completed(url)  # the first may come before all are ready
        until(lambda: len(pids(child.pid)) == 2)
        first, second = pids(child.pid)

        def served_by() -> set[str]:
            lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
            return {line for line in lines if line.startswith("dovetail_worker_up") and line.endswith(" 1.0")}

        until(lambda: len(served_by()) == 2)
        before = served_total(url)
        for _ in range(4):
            completed(url)
        until(lambda: sum(served_total(url).values()) == sum(before.values()) + 4)
        counts = served_total(url)
        assert [counts[worker] - before.get(worker, 0) for worker in ("0", "1")] == [2, 2], "in turn"
        os.kill(first, signal.SIGKILL)
        until(lambda: set(pids(child.pid)) != {first, second} and len(pids(child.pid)) == 2)
        until(lambda: len(served_by()) == 2)
        for _ in range(4):
            completed(url)
        child.send_signal(signal.SIGTERM)
        code, printed, complaints = ended(child)
    assert code == 0
    assert complaints.count("\n") == 1 and "worker 0 has ended with code -9, and is started again" in complaints
    assert printed.count("ready in") == 1


def served_total(url: str) -> dict[str, int]:
    """Answers by worker."""
    counts: dict[str, int] = {}
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        if line.startswith("dovetail_requests_total{"):
            worker = line.partition('worker="')[2][0]
            counts[worker] = counts.get(worker, 0) + int(float(line.rpartition(" ")[2]))
    return counts


@pytest.mark.slow
def test_workers_share_the_keys_of_a_file_and_a_port_for_metrics(engine: int, tmp_path: Path) -> None:
    """Also a worker that is started after the file has changed."""
    file, metrics = tmp_path / "keys.yaml", free_port()
    file.write_text(entry_of("alice", "first"))
    with workers(2, engine, "--api-keys", str(file), "--metrics-port", str(metrics)) as (child, url):

        def accepted(key: str) -> set[int]:
            """What four new connections get, two for each worker."""
            sent = {"authorization": f"Bearer {key}"}
            return {httpx.get(f"{url}/v1/models", headers=sent, timeout=60).status_code for _ in range(4)}

        def up() -> int:
            page = httpx.get(f"http://127.0.0.1:{metrics}/metrics", timeout=60).text
            return sum(line.startswith("dovetail_worker_up") and line.endswith(" 1.0") for line in page.splitlines())

        assert accepted("first") == {200}
        until(lambda: up() == 2)
        file.write_text(entry_of("alice", "second"))
        child.send_signal(signal.SIGHUP)
        until(lambda: accepted("second") == {200})
        assert accepted("first") == {401}
        first = pids(child.pid)[0]
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in pids(child.pid) and len(pids(child.pid)) == 2)
        until(lambda: up() == 2)
        assert accepted("second") == {200} and accepted("first") == {401}
        child.send_signal(signal.SIGTERM)
        code, _, complaints = ended(child)
    assert code == 0
    assert complaints.count("1 API keys were read again") == 2


@pytest.mark.slow
def test_workers_share_the_limits_of_a_key(engine: int, tmp_path: Path) -> None:
    """Each request has a connection of its own, so that workers take turns; one of them dies, another begins."""
    file = tmp_path / "keys.yaml"
    file.write_text(f"{entry_of('alice', 'first')}  requests_per_minute: 6\n")
    sent = {"authorization": "Bearer first"}
    with workers(2, engine, "--api-keys", str(file)) as (child, url):

        def send() -> tuple[int, str]:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body(), headers=sent, timeout=60)
            return answer.status_code, answer.headers["x-ratelimit-remaining-requests"]

        assert send() == (200, "5")
        until(lambda: len(pids(child.pid)) == 2)
        began = time.monotonic()
        first = pids(child.pid)[0]
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in pids(child.pid) and len(pids(child.pid)) == 2)
        statuses = [send()[0] for _ in range(12)]
        flowed_back = math.ceil((time.monotonic() - began + 10) / 10)
        assert 5 <= statuses.count(200) <= 5 + flowed_back and set(statuses) == {200, 429}
        child.send_signal(signal.SIGTERM)
        assert ended(child)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_running_answers_end_before_the_server(engine: int, number: signal.Signals) -> None:
    with workers(2, engine) as (child, url):
        completed(url)
        set_pace(engine, "20")
        try:
            streamed = body(stream=True, max_tokens=40)
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=streamed, timeout=60) as answer:
                lines = answer.iter_lines()
                next(lines)
                child.send_signal(number)
                rest = list(lines)
        finally:
            set_pace(engine, "whole")
        code, _, complaints = ended(child)
    assert "data: [DONE]" in rest
    assert (code, complaints) == (0, "")


_ONE_STARTS_SLOWLY = """
import os, signal, socket, time
from dovetail.cli.workers import READY, Workers

def serve(channel, number, first):
    def end(number_of_signal, frame):
        raise SystemExit(0 if number in READY_ONES else 128 + number_of_signal)
    signal.signal(signal.SIGTERM, end)
    if number in READY_ONES:
        channel.send(READY)
    os.write(1, b"up\\n")  # at once: the other worker writes there, too
    for _ in range(6000):  # a minute, if the parent is killed
        time.sleep(0.01)

raise SystemExit(Workers(2, socket.create_server(("127.0.0.1", 0)), serve).run())
"""


@pytest.mark.parametrize(("ready", "expected"), [((0,), 0), ((), 143)])
def test_a_worker_that_ends_while_it_starts_is_no_failure_if_others_serve(
    ready: tuple[int, ...], expected: int
) -> None:
    script = f"READY_ONES = {ready}\n{_ONE_STARTS_SLOWLY}"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(2)] == ["up\n"] * 2
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == expected
        finally:
            child.kill()


_A_SIGNAL_AT_THE_FORK = """
import os, signal, socket
from dovetail.cli.workers import Workers

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
raise SystemExit(Workers(1, socket.create_server(("127.0.0.1", 0)), lambda *_: signal.pause()).run())
"""


def test_a_signal_reaches_a_worker_from_its_first_moment() -> None:
    """The worker ends, and its parent sees that it could not start."""
    child = subprocess.run([sys.executable, "-c", _A_SIGNAL_AT_THE_FORK], timeout=60, check=False)
    assert child.returncode == 1


@pytest.mark.slow
def test_workers_end_with_their_parent(engine: int) -> None:
    with workers(2, engine) as (child, url):
        completed(url)
        until(lambda: len(pids(child.pid)) == 2)
        children = pids(child.pid)
        child.kill()
        until(lambda: not any(running(pid) for pid in children))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_an_engine_that_is_not_there_is_one_message_a_worker() -> None:
    with workers(2, free_port()) as (child, _):
        code, _, complaints = ended(child)
    assert code == 2
    assert {line.partition(":")[0] for line in complaints.splitlines()} == {"dovetail"}
    assert "cannot be reached" in complaints


@pytest.mark.parametrize("engine_name", ["embedded", "vllm"])
def test_an_engine_that_cannot_be_shared_is_refused(dovetail: Dovetail, pair: Path, engine_name: str) -> None:
    refused = dovetail("serve", pair / "target", "--workers", "2", "--engine", engine_name)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "give its URL as --engine" in refused.stderr


@pytest.mark.slow
def test_on_a_unix_socket(engine: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with workers(2, engine, "--uds", str(path)) as (child, _):
        until(path.exists)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
            assert client.post("http://localhost/v1/chat/completions", json=body()).status_code == 200
        child.send_signal(signal.SIGTERM)
        code, _, complaints = ended(child)
    assert (code, complaints) == (0, "")
    assert not path.exists()
