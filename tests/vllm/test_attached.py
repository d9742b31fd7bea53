"""vLLM that was started by hand, with Dovetail's parsers and its gate inside, and Dovetail's gateway in front."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import dovetail
from tests.cli.test_serve import free_port
from tests.test_served import REQUESTS, streamed
from tests.vllm import asking, processes
from tests.vllm.checkpoints import EAGLE3, TARGET
from tests.vllm.processes import Process, up

ASKED = dict(asking.requests())
BELOW, MOST = 400, 2  # the probe at the start has to be shorter
TOKENS = 120  # that the gate's requests get
#: Prompts are written as Dovetail writes them, so that both sides read answers to the same ids.
TEMPLATE = "{{ prompt }}"


@pytest.fixture(scope="module")
def engine(
    program: Path, tmp_path_factory: pytest.TempPathFactory, embedded: dict[str, asking.Answers]
) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("attached")
    (folder / "template.jinja").write_text(TEMPLATE)
    (folder / "counters").mkdir()
    port = free_port()
    drafting = {"method": "eagle3", "model": str(EAGLE3), "num_speculative_tokens": 3}
    gate = {"gate": "off", "speculate_below_context": BELOW, "speculate_up_to_batch": MOST}
    command: list[str | Path] = [program, "serve", TARGET, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", asking.MODEL, "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--speculative-config", json.dumps(drafting), "--max-num-seqs", "8"]
    command += ["--scheduler-cls", "dovetail.plugins.vllm.GatedScheduler"]
    command += ["--additional-config", json.dumps({"dovetail": gate})]
    command += ["--enable-auto-tool-choice", "--chat-template", folder / "template.jinja"]
    command += ["--tool-call-parser", "dovetail_kimi_k25", "--reasoning-parser", "dovetail_kimi_k25"]
    # Counted by the engine's process, shown by the API server's.
    counters = {"PROMETHEUS_MULTIPROC_DIR": str(folder / "counters")}
    with up(Process(command, port, "Application startup complete", **counters)) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(engine: Process) -> Iterator[Process]:
    words = ("--engine", engine.url, "--context", "1024", "--served-model-name", asking.MODEL, "--strict", "off")
    process = processes.dovetail(*words)
    try:
        process.wait_until_up()
        yield process
        assert process.stop() == 0
    finally:
        process.kill()


def test_it_is_attached_to_and_drafts(gateway: Process) -> None:
    assert "speculation is on:" in gateway.printed
    assert "arning" not in gateway.printed


def test_calls_cannot_be_held_to_schemas_behind_a_reasoning_parser(engine: Process) -> None:
    process = processes.dovetail("--engine", engine.url, "--context", "1024")
    try:
        assert process.end() == 2
    finally:
        process.kill()
    assert "does not enforce the schemas of calls: it was started with a reasoning parser" in process.printed


def test_ids_are_those_of_the_embedded_engine(gateway: Process, embedded: dict[str, asking.Answers]) -> None:
    assert asking.ids(gateway.url, ASKED) == embedded["off"]


# --- the parsers inside vLLM ------------------------------------------------------------------------------------------


def inside(name: str) -> dict[str, Any]:
    """The request to vLLM itself."""
    thinking = name.endswith("thinking")
    content, tools = REQUESTS[name.rpartition(", ")[0]]
    messages = [{"role": "user", "content": content}]
    prompt = dovetail.format(TARGET).render(messages, tools or None, thinking=thinking).text
    return asking.by_client(ASKED[name], prompt=prompt)


@pytest.mark.parametrize("name", ASKED)
def test_vllm_reads_what_the_gateway_reads(engine: Process, gateway: Process, name: str) -> None:
    with asking.client(gateway.url) as outside:
        expected = asking.whole(outside, asking.by_client(ASKED[name]))
    with asking.client(engine.url) as client:
        assert asking.whole(client, inside(name)) == expected
        assert streamed(client, inside(name)) == expected
    assert bool(expected["calls"]) is ("tools" in ASKED[name])


def test_both_were_asked_the_same(engine: Process, gateway: Process) -> None:
    prompts = {name: prompt for name, (prompt, _) in asking.ids(gateway.url, ASKED).items()}
    for name, prompt in prompts.items():
        request = inside(name)
        body = {**request, **request.pop("extra_body"), "return_token_ids": True, "max_tokens": 1}
        answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["prompt_token_ids"] == prompt


# --- the gate inside vLLM ---------------------------------------------------------------------------------------------


def continued(engine: Process, prompts: Sequence[Sequence[int]], tokens: int = TOKENS) -> list[list[int]]:
    """Prompts that run at once, greedy, of fixed length."""

    def ask(prompt: Sequence[int]) -> list[int]:
        body = {"model": asking.MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


class Counted:
    """What vLLM and the gate inside it have counted since this was made, or asked before."""

    def __init__(self, engine: Process) -> None:
        self._engine, self._before = engine, engine.metrics()

    def __call__(self) -> dict[str, float]:
        now = self._engine.metrics()
        counts = {"drafted": 0.0, "draft": 0.0, "batch": 0.0, "context": 0.0}
        for name, value in now.items():
            more = value - self._before.get(name, 0)
            if name.startswith("vllm:spec_decode_num_draft_tokens_total"):
                counts["drafted"] += more
            for reason in ("draft", "batch", "context"):
                if name.startswith("dovetail:gate_decisions_total") and f'reason="{reason}"' in name:
                    counts[reason] += more
        self._before = now
        return counts


def test_the_gate_closes_and_opens_at_its_limits(engine: Process) -> None:
    prompts = [list(range(start, start + 40)) for start in (5, 300, 900, 1500)]
    counted = Counted(engine)
    alone = [continued(engine, [prompt])[0] for prompt in prompts]
    few = counted()
    assert few["drafted"] > 0 and few["draft"] > 0 and few["batch"] == few["context"] == 0

    together = continued(engine, prompts)
    many = counted()
    assert many["batch"] > 0 and many["context"] == 0
    assert many["drafted"] < few["drafted"] / 4, "but for where they begin and end one after the other"
    assert "gate closed: 4 sequences decode, and drafting is for up to 2" in engine.printed

    again = continued(engine, prompts[:1])
    assert counted()["drafted"] > 0, "it opened again"

    long = [token for pair in zip(prompts[:3], alone[:3], strict=True) for ids in pair for token in ids]
    assert len(long) > BELOW
    continued(engine, [long])
    assert (after := counted())["drafted"] == 0 and after["context"] > 0
    assert f"gate closed: all 1 sequences have {BELOW} tokens or more" in engine.printed

    assert continued(engine, prompts[1:2]) == alone[1:2]
    assert counted()["drafted"] > 0, "and again"
    assert "gate open: up to 3 drafts a step for 1 sequences" in engine.printed
    assert (together, again) == (alone, alone[:1]), "whatever it decided, the text is the same"
