"""A model that reasons without end, behind `dovetail serve --engine vllm`: vLLM ends its reasoning at the budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import dovetail
from tests.test_served import tool
from tests.vllm import asking, checkpoints, processes
from tests.vllm.processes import Process, up

TEXT = " \U0001f9ab"  # a token, and a character of four
THINK, THINK_END = (dovetail.tokenizer(checkpoints.TARGET).control[tag] for tag in ("<think>", "</think>"))


@pytest.fixture(scope="module", params=["kimi_k25", "kimi_k2_thinking"])
def server(
    program: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Process]:
    """The prompt opens reasoning, or the model does."""
    target = checkpoints.endless(tmp_path_factory.mktemp("endless"), TEXT)
    words = (target, "--format", request.param, "--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager")
    options = ("--context", "512", "--dtype", "float32", "--served-model-name", asking.MODEL)
    with up(processes.dovetail(*words, *options, "--reasoning-budget", "20")) as process:
        yield process
        assert process.stop() == 0


def ids(server: Process, **fields: Any) -> list[int]:
    """Of the answer, from the reasoning on."""
    extension = {"return_token_ids": True} | fields.pop("dovetail", {})
    request = {"model": asking.MODEL, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    request |= {"max_tokens": 60, "dovetail": extension, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=request, timeout=300)
    assert answer.status_code == 200, answer.text
    assert "x-dovetail-omitted" not in answer.headers
    choice = answer.json()["choices"][0]
    if fields.get("tool_choice") == "required":
        assert choice["finish_reason"] == "tool_calls"
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["ping"]
    answered = list(choice["message"]["dovetail"]["token_ids"])
    return answered[answered[0] == THINK :]


@pytest.mark.parametrize("budget", [0, 1, 3, 5, 19])
@pytest.mark.parametrize(
    "fields",
    [
        {"dovetail": {"strict": "off"}},
        {},
        {"tools": [tool("ping")]},
        {"tools": [tool("ping")], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_it_ends_at_the_budget(server: Process, fields: dict[str, Any], budget: int) -> None:
    """Inside a character too, where 5 does not divide the budget."""
    assert ids(server, thinking_budget=budget, **fields).index(THINK_END) == budget


def test_the_budgets_of_server_and_call(server: Process) -> None:
    assert ids(server).index(THINK_END) == 20
    assert THINK_END not in ids(server, thinking_budget=-1)
    call: dict[str, Any] = {"tools": [tool("ping")], "tool_choice": "required", "thinking_budget": -1}
    assert ids(server, **call, max_tokens=200).index(THINK_END) == 150  # a quarter is for the call
