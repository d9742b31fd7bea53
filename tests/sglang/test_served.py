"""A real SGLang on a CPU behind the gateway, with a tiny Llama: ids, grammars, cache, sessions, and its end.

DOVETAIL_SGLANG_CPU names the Python of an environment that setup.sh makes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.cli.test_serve import free_port
from tests.test_served import tool
from tests.vllm import asking, checkpoints, processes
from tests.vllm.processes import Process, up

VARIABLE = "DOVETAIL_SGLANG_CPU"
KERNELS = Path(__file__).parent / "kernels"
PROMPTS = ("a b c", "once upon a time", "2 and 2", "red, far, near", "Why?", "one two three four five six seven")
CITY, DAYS = {"type": "string", "enum": ["Paris", "Rome"]}, {"type": "integer", "minimum": 1, "maximum": 9}
WEATHER = tool("get_weather", city=CITY, days=DAYS)


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with SGLang on CPU: setup.sh makes one")
    return named


@pytest.fixture(scope="module")
def target(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def sglang(python: str, target: Path) -> Iterator[Process]:
    port = free_port()
    command: list[str | Path] = [python, "-m", "sglang.launch_server", "--model-path", target, "--port", str(port)]
    command += ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"]
    command += ["--context-length", "1024", "--max-total-tokens", "8192", "--mem-fraction-static", "0.1"]
    command += [
        "--skip-server-warmup",
        "--disable-overlap-schedule",
        "--enable-metrics",
        "--grammar-backend",
        "xgrammar",
    ]
    variables = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(KERNELS), "HF_HUB_OFFLINE": "1"}
    with up(Process(command, port, "The server is fired up", **variables)) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(sglang: Process, target: Path) -> Iterator[Process]:
    words = (target, "--engine", sglang.url, "--format", "kimi_k25", "--context", "1024", "--draft-tokens", "0")
    with up(processes.dovetail(*words, "--served-model-name", asking.MODEL, "--max-batch", "4")) as process:
        yield process


def chat(server: Process, content: str, **fields: Any) -> httpx.Response:
    body = {"model": asking.MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    body["chat_template_kwargs"] = {"thinking": False}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)


def test_ids_are_those_of_the_embedded_engine(gateway: Process, target: Path) -> None:
    asked = asking.texts(*PROMPTS, max_tokens=24)
    words = (target, "--format", "kimi_k25", "--draft-tokens", "0", "--context", "1024", "--dtype", "float32")
    with up(processes.dovetail(*words, "--served-model-name", asking.MODEL)) as embedded:
        expected = asking.ids(embedded.url, asked, strict="off", silent=True)
    assert asking.ids(gateway.url, asked, strict="off", silent=True) == expected


def test_calls_are_held_to_their_schemas(gateway: Process) -> None:
    tools = [WEATHER, tool("get_time", zone={"type": "string", "enum": ["UTC", "CET"]})]
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    for schema in schemas.values():
        schema["additionalProperties"] = False  # random weights would never come to an end of them
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        asked = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 400}
        (whole,) = chat(gateway, "Weather?", **asked).json()["choices"]
        assert whole["finish_reason"] == "tool_calls"
        (call,) = whole["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])


def test_a_response_format(gateway: Process) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = chat(gateway, "A number?", response_format=wanted, max_tokens=100).json()
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), schema)


def test_a_conversation_finds_its_prompt_cached(gateway: Process) -> None:
    long = " ".join(PROMPTS) * 3
    first = chat(gateway, long, max_tokens=4).json()["usage"]
    again = chat(gateway, long, max_tokens=4).json()["usage"]
    assert first["prompt_tokens"] == again["prompt_tokens"] > 60
    assert again["prompt_tokens_details"]["cached_tokens"] >= again["prompt_tokens"] - 1


def test_fields_that_sglang_gets(gateway: Process) -> None:
    answer = chat(
        gateway, "a", max_tokens=4, priority=-1, seed=3, logprobs=True, top_logprobs=2, stop=["zz"], min_tokens=2
    )
    assert answer.status_code == 200 and "x-dovetail-omitted" not in answer.headers
    logprobs = answer.json()["choices"][0]["logprobs"]["content"]
    assert logprobs and all(len(each["top_logprobs"]) == 2 for each in logprobs)


def test_a_client_that_leaves_frees_its_place(gateway: Process, sglang: Process) -> None:
    body = {"model": asking.MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "stream": True}
    body |= {"ignore_eos": True}
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=300) as stream:
        next(stream.iter_lines())

    def idle() -> bool:
        running = [value for name, value in sglang.metrics().items() if name.startswith("sglang:num_running_reqs")]
        return bool(running) and not any(running)

    processes.until(idle, "the answer's end")
