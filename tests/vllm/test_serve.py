"""`dovetail serve --engine vllm` with the demo pair, EAGLE-3 on MLA: its answers, and its restart after a crash."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.test_served import streamed
from tests.vllm import asking
from tests.vllm.processes import Process, dovetail, up

REQUESTS = dict(asking.requests())
#: What runs at once, so that a third request waits in vLLM's own queue.
BATCH = 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "vllm.log"


@pytest.fixture(scope="module")
def server(program: Path, log: Path, embedded: dict[str, asking.Answers]) -> Iterator[Process]:
    words = ("--engine", "vllm", "--vllm", program, "--engine-log", log, "--engine-args=--enforce-eager")
    options = (
        "--context",
        "1024",
        "--dtype",
        "float32",
        "--max-batch",
        str(BATCH),
        "--served-model-name",
        asking.MODEL,
    )
    with up(dovetail(*words, *options)) as process:
        yield process


@pytest.fixture
def client(server: Process) -> Iterator[openai.OpenAI]:
    with asking.client(server.url) as made:
        yield made


def test_it_shows_how_far_it_is_and_that_it_drafts(server: Process) -> None:
    printed = server.printed
    for line in ("vLLM is starting", "loading weights, after", "speculation is on:", "ready in"):
        assert line in printed
    assert "WARNING" not in printed


@pytest.mark.parametrize("strict", ["off", "schema"])
def test_ids_are_those_of_the_embedded_engine(
    server: Process, embedded: dict[str, asking.Answers], strict: str
) -> None:
    before = server.metrics()
    assert asking.ids(server.url, REQUESTS, strict=strict) == embedded[strict]
    after = server.metrics()
    drafted, accepted = (
        after[f"dovetail_{name}_tokens_total"] - before[f"dovetail_{name}_tokens_total"]
        for name in ("drafted", "accepted")
    )
    assert 0 < accepted <= drafted


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_is_the_same_message(client: openai.OpenAI, name: str) -> None:
    request = asking.by_client(REQUESTS[name])
    answer = asking.whole(client, request)
    assert streamed(client, request) == answer
    assert bool(answer["calls"]) is ("tools" in request)
    assert bool(answer["reasoning"]) is ("thinking" in name)


class Streamed:
    """A stream of one call, read by a thread of its own."""

    def __init__(self, client: openai.OpenAI, pool: ThreadPoolExecutor, items: int) -> None:
        self.begun = threading.Event()
        self._client = client
        self._request = asking.by_client(asking.counting(items))
        self.read: Future[str] = pool.submit(self._read)

    def _read(self) -> str:
        """Its arguments, to the end or to the error that ends it."""
        arguments = ""
        for chunk in self._client.chat.completions.create(**self._request, stream=True):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or ():
                    arguments += (call.function and call.function.arguments) or ""
            if len(arguments) > 20:
                self.begun.set()
        return arguments


def named(log: Path, process: str) -> int:
    """The id of vLLM's latest process of that name, which is in every line that it writes."""
    return int(re.findall(rf"\({process} pid=(\d+)\)", log.read_text())[-1])


@pytest.mark.parametrize("process", ["EngineCore", "APIServer"])
def test_killed_in_the_middle(
    server: Process, client: openai.OpenAI, log: Path, embedded: dict[str, asking.Answers], process: str
) -> None:
    """What had begun ends with an error that says so, what had not is answered, and it serves as before."""
    asked = dict(list(REQUESTS.items())[:3])
    restarts = server.metrics()["dovetail_engine_restarts_total"]
    with ThreadPoolExecutor() as pool:
        streams = [Streamed(client, pool, 400) for _ in range(BATCH)]
        for stream in streams:
            assert stream.begun.wait(120)
        waiting = pool.submit(asking.ids, server.url, asked)
        metrics_url = f"{server.url}/metrics"
        ends = time.monotonic() + 60
        while server.metrics()["dovetail_engine_waiting"] < len(asked):
            assert time.monotonic() < ends, httpx.get(metrics_url).text
            time.sleep(0.1)
        assert not waiting.done()
        os.kill(named(log, process), signal.SIGKILL)
        for stream in streams:
            with pytest.raises(openai.APIError, match="the engine died while it answered, and is being started again"):
                stream.read.result(120)
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 503
        assert waiting.result(300) == {name: embedded["off"][name] for name in asked}
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert server.metrics()["dovetail_engine_restarts_total"] == restarts + 1
    assert "vLLM is back" in server.printed


def test_a_signal_lets_answers_end(server: Process, client: openai.OpenAI) -> None:
    """The last of this server."""
    with ThreadPoolExecutor() as pool:
        stream = Streamed(client, pool, 50)  # what it has to end is ten seconds
        assert stream.begun.wait(120)
        code = server.stop(signal.SIGTERM)
        assert stream.read.result(60).startswith('{"numbers":')  # to its end, without an error
    assert code == 0, server.printed
    assert "Traceback" not in server.printed
