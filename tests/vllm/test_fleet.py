"""Four real vLLM, and two gateways that do not know of each other: who gets what, and what is cached."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve import free_port
from tests.vllm import asking, checkpoints, processes
from tests.vllm.processes import Process

ENGINES, GATEWAYS, CONVERSATIONS, TURNS = 4, 2, 12, 4
BLOCK = 16  # tokens of vLLM's cache


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama: on a CPU vLLM caches no prompts of models with latent attention."""
    return checkpoints.llama(tmp_path_factory.mktemp("checkpoint"))


def vllm(program: Path, target: Path, port: int) -> Process:
    command: list[str | Path] = [program, "serve", target, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", asking.MODEL, "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--max-num-seqs", "8", "--block-size", str(BLOCK), "--enable-prompt-tokens-details"]
    return Process(command, port, "Application startup complete")


@pytest.fixture(scope="module")
def engines(program: Path, target: Path) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        started = [vllm(program, target, free_port()) for _ in range(ENGINES)]
        for process in started:
            stack.callback(process.close)
        for process in started:
            process.wait_until_up()
        yield started


@pytest.fixture(scope="module")
def gateways(engines: list[Process], target: Path) -> Iterator[list[Process]]:
    urls = ",".join(engine.url for engine in engines)
    words = (target, "--engine", urls, "--format", "kimi_k25", "--context", "1024", "--draft-tokens", "0")
    with ExitStack() as stack:
        started = [processes.dovetail(*words, "--served-model-name", asking.MODEL) for _ in range(GATEWAYS)]
        for process in started:
            stack.callback(process.close)
        for process in started:
            process.wait_until_up()
        yield started


class Conversation:
    """It is continued by whichever gateway it comes to."""

    def __init__(self, number: int) -> None:
        said = random.Random(number)
        self.messages: list[dict[str, Any]] = []
        self._say = lambda: (
            f"{number} " + " ".join(said.choice(("red", "blue", "far", "near", "two")) for _ in range(24))
        )
        self.prompts: list[int] = []
        self.cached: list[int] = []
        self.ids: list[list[int]] = []

    def go_on(self, gateway: Process) -> None:
        self.messages.append({"role": "user", "content": self._say()})
        body = {"model": asking.MODEL, "messages": self.messages, "max_tokens": 24, "temperature": 0}
        extra = {"dovetail": {"return_token_ids": True, "record": True, "silent": True}}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body | extra, timeout=120)
        assert answer.status_code == 200, answer.text
        whole = answer.json()
        self.messages.append(whole["choices"][0]["message"])
        self.prompts.append(whole["usage"]["prompt_tokens"])
        self.cached.append((whole["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def answered(engines: list[Process]) -> list[float]:
    """How many requests each of them has answered."""
    name = "vllm:request_success_total"
    return [
        sum(value for key, value in engine.metrics().items() if key.startswith(name)) if engine.code is None else -1
        for engine in engines
    ]


def test_gateways_agree_and_a_conversation_finds_what_is_cached(
    engines: list[Process], gateways: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(0)
    conversations = [Conversation(number) for number in range(CONVERSATIONS)]
    homes: list[set[int]] = [set() for _ in conversations]
    for _ in range(TURNS):
        for conversation, home in zip(conversations, homes, strict=True):
            before = answered(engines)
            conversation.go_on(chance.choice(gateways))
            after = answered(engines)
            home |= {i for i, (had, has) in enumerate(zip(before, after, strict=True)) if has > had}
    assert all(len(home) == 1 for home in homes), homes
    spread = Counter(home.copy().pop() for home in homes)
    assert len(spread) > 1
    cached = total = 0
    for conversation in conversations:
        for last, cached_now in zip(conversation.prompts, conversation.cached[1:], strict=False):
            assert cached_now >= last // BLOCK * BLOCK  # all whole blocks of the prompt before
        cached, total = cached + sum(conversation.cached), total + sum(conversation.prompts)
    with capsys.disabled():
        print(f"\ncached {cached / total:.1%} of {total} tokens; conversations by engine: {sorted(spread.items())}")


def test_an_engine_that_is_killed_and_comes_back(
    engines: list[Process], gateways: list[Process], program: Path, target: Path
) -> None:
    conversations = [Conversation(100 + number) for number in range(CONVERSATIONS)]
    for conversation in conversations:
        conversation.go_on(gateways[0])
    killed = engines[0]
    port = int(killed.url.rpartition(":")[2])
    for pid in (*killed.family(), killed.pid):
        os.kill(pid, signal.SIGKILL)
    killed.end()
    for conversation in conversations:
        conversation.go_on(gateways[1])
    with processes.up(vllm(program, target, port)) as back:
        there = {f'dovetail_engine_server_up{{server="127.0.0.1:{port}"}}': 1.0}
        processes.until(lambda: all(there.items() <= gateway.metrics().items() for gateway in gateways), "it joins")
        before = answered([back])
        for conversation in conversations:
            conversation.go_on(gateways[0])
        assert answered([back]) > before
