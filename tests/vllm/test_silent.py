"""Law 19 on vLLM, with xgrammar and with guidance: a model that wants to end after it has reasoned says something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import dovetail
from dovetail.events import is_visible
from tests.test_served import tool
from tests.vllm import asking, checkpoints, processes
from tests.vllm.processes import Process, up

CONTROL = dovetail.tokenizer(checkpoints.TARGET).control
#: The bias of a model that ends its turn wherever it may, and of one that ends its reasoning at once before that.
WANTS_TO_END = {str(CONTROL["<|im_end|>"]): 100}
REASONED = {str(CONTROL["</think>"]): 60, **WANTS_TO_END}
WEATHER = tool("get_weather", city={"type": "string"})
#: Of each of the kinds of request.
ANSWERS, AT_ONCE = 512, 16


@pytest.fixture(scope="module", params=["xgrammar", "guidance"])
def server(
    program: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Process]:
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    words = ("--engine", "vllm", "--vllm", program, "--engine-log", log, "--engine-args=--enforce-eager")
    options = (
        "--context",
        "1024",
        "--dtype",
        "float32",
        "--max-batch",
        "16",
        "--drafter",
        "none",
        "--method",
        "none",
        "--served-model-name",
        asking.MODEL,
    )
    with up(processes.dovetail(*words, *options, "--grammar-backend", request.param)) as process:
        yield process
        assert process.stop() == 0


def silent(server: Process, answers: int, *, may_be: bool, strict: str = "schema", **fields: Any) -> int:
    """How many of that many answers say nothing."""
    count = 0
    for seed in range(0, answers, AT_ONCE):
        body = {
            "model": asking.MODEL,
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "temperature": 1,
            "seed": seed,
            "n": AT_ONCE,
            "max_tokens": 60,
            "logit_bias": REASONED if strict == "schema" else WANTS_TO_END,
            "dovetail": {"silent": may_be, "strict": strict},
            **fields,
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            message = choice["message"]
            said = is_visible(message["content"] or "") or message.get("tool_calls")
            count += choice["finish_reason"] != "length" and not said
    return count


@pytest.mark.parametrize("tools", [{}, {"tools": [WEATHER]}], ids=["chat", "tools"])
def test_no_answer_is_silent(server: Process, tools: dict[str, Any]) -> None:
    assert silent(server, AT_ONCE, may_be=True, **tools) > AT_ONCE * 0.9
    assert silent(server, ANSWERS, may_be=False, **tools) == 0


def test_an_answer_without_a_grammar_is_continued(server: Process) -> None:
    """Behind its first token nothing holds the model, so it may still write a blank and end."""
    assert silent(server, AT_ONCE, may_be=True, strict="off") > AT_ONCE * 0.9
    assert silent(server, 10 * AT_ONCE, may_be=False, strict="off") < AT_ONCE
