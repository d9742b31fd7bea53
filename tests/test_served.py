"""The whole path for real: demo pair, embedded engine, gateway, and the official OpenAI client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

import dovetail
from tests.demo_server import DEMO, demo_server


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"})
HOTEL = tool("find_hotel", city={"type": "string"}, limit={"type": "integer"})
REQUESTS = {
    "one tool": ("Please get the weather for city Paris.", [WEATHER]),
    "several tools": ("Get the weather in Rome and find a hotel with limit 3 and city Oslo.", [WEATHER, HOTEL]),
    "two calls": ("Get the weather for city Paris and get the weather for city London.", [WEATHER]),
    "no tool": ("Hello!", []),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with demo_server() as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def gauge(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"dovetail_engine_{name}")))


def reasoning_of(message: Any) -> str:
    """Reasoning of a message or a delta, under its name at the gateway, or at vLLM."""
    return getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""


def streamed(client: openai.OpenAI, request: dict[str, Any]) -> dict[str, Any]:
    """The message that a client makes of a stream."""
    answer: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        if chunk.usage is not None:
            answer["tokens"] = chunk.usage.completion_tokens
        for choice in chunk.choices:
            answer["content"] += choice.delta.content or ""
            answer["reasoning"] += reasoning_of(choice.delta)
            for piece in choice.delta.tool_calls or ():
                if piece.id is not None:
                    assert piece.index == len(answer["calls"])
                    answer["calls"].append([piece.id, piece.function.name, ""])
                answer["calls"][piece.index][2] += piece.function.arguments or ""
            answer["finish"] = choice.finish_reason or answer["finish"]
    return answer


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", list(REQUESTS))
def test_a_stream_is_the_same_message(client: openai.OpenAI, name: str, thinking: bool) -> None:
    content, tools = REQUESTS[name]
    request: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 200,
        "extra_body": {"chat_template_kwargs": {"thinking": thinking}},
    }
    if tools:
        request["tools"] = tools
    whole = client.chat.completions.create(**request)
    message = whole.choices[0].message
    calls = [[c.id, c.function.name, c.function.arguments] for c in message.tool_calls or ()]
    assert streamed(client, request) == {
        "content": message.content or "",
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "calls": calls,
        "finish": whole.choices[0].finish_reason,
        "tokens": whole.usage.completion_tokens,
    }
    assert bool(getattr(message, "reasoning_content", "")) is thinking
    assert not getattr(message, "dovetail", None)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    for _, called, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[called])
    assert (whole.choices[0].finish_reason == "tool_calls") is bool(calls) is bool(tools)


def test_the_readme_example_works(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Please get the weather for city Paris."}]
    request: dict[str, Any] = {"model": "demo", "tools": [WEATHER], "temperature": 0}
    message = client.chat.completions.create(**request, messages=messages).choices[0].message
    [call] = message.tool_calls
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == (
        "functions.get_weather:0",
        "get_weather",
        {"city": "Paris"},
    )
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"result": "red"}'},
    ]
    answer = client.chat.completions.create(**request, messages=messages).choices[0]
    assert answer.finish_reason == "stop"
    assert "red" in answer.message.content


def test_speculation_is_counted_and_changes_nothing(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
        "tools": [WEATHER],
        "temperature": 0,
    }
    on = client.chat.completions.create(**request)
    off = client.chat.completions.create(**request, extra_body={"dovetail": {"draft_tokens": 0}})
    assert on.choices[0].message == off.choices[0].message
    assert on.usage.speculation["accepted"] > 0
    assert off.usage.speculation["drafted"] == 0
    assert on.usage.speculation["steps"] < off.usage.speculation["steps"]


def test_reasoning_ends_at_its_budget_and_speculation_changes_nothing(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
        "tools": [WEATHER],
        "temperature": 0,
    }

    def answer(**fields: Any) -> tuple[list[int], int, Any]:
        body = {**fields, "dovetail": {"return_token_ids": True, **fields.get("dovetail", {})}}
        response = client.chat.completions.create(**request, extra_body=body)
        message = response.choices[0].message
        reasoning = response.usage.completion_tokens_details.reasoning_tokens
        return message.model_extra["dovetail"]["token_ids"], reasoning, message.tool_calls

    ids, reasoning, calls = answer()
    assert answer(thinking_budget=reasoning - 1) == (ids, reasoning, calls)  # the marker is not reasoning
    shorter = answer(thinking_budget=3)
    assert (shorter[0][:3], shorter[1]) == (ids[:3], 4)
    assert [call.function.name for call in shorter[2]] == ["get_weather"]
    assert answer(thinking_budget=3, dovetail={"draft_tokens": 0}) == shorter
    assert answer(thinking_budget=3, dovetail={"strict": "off"})[0][:4] == shorter[0][:4]


@pytest.mark.slow
def test_sampled_calls_are_valid(client: openai.OpenAI) -> None:
    """Even at temperature 2, at which this model generates nonsense."""
    tools = [WEATHER, HOTEL]
    checked = 0
    for seed in range(6):
        choice = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Find a hotel with limit 3 and city Oslo."}],
            tools=tools,
            tool_choice="required",
            temperature=2,
            seed=seed,
            max_tokens=400,
        ).choices[0]
        if choice.finish_reason != "tool_calls":
            continue
        for call in choice.message.tool_calls:
            schema = next(t["function"]["parameters"] for t in tools if t["function"]["name"] == call.function.name)
            jsonschema.validate(json.loads(call.function.arguments), schema)
            checked += 1
    assert checked


HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 40}


@pytest.mark.slow
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_several_sampled_choices_with_log_probabilities(client: openai.OpenAI, draft_tokens: int) -> None:
    """Each choice equals the answer that its seed gives alone, and its log probabilities spell it."""
    request = HELLO | {"temperature": 2, "logprobs": True, "top_logprobs": 5}
    request |= {"extra_body": {"dovetail": {"draft_tokens": draft_tokens, "return_token_ids": True}}}
    choices = client.chat.completions.create(**request, n=3, seed=11)
    assert [choice.index for choice in choices.choices] == [0, 1, 2]
    ids = [choice.message.dovetail["token_ids"] for choice in choices.choices]
    assert ids[0] != ids[1] != ids[2]
    tokenizer = dovetail.tokenizer(DEMO / "target")
    tokens = 0
    for i, choice in enumerate(choices.choices):
        alone = client.chat.completions.create(**request, seed=11 + i)
        assert alone.choices[0].message == choice.message
        assert choice.logprobs is not None and choice.logprobs.content is not None
        tokens += len(choice.logprobs.content)
        for entry in choice.logprobs.content:
            assert entry.logprob <= 0 and len(entry.top_logprobs) == 5
            values = [likely.logprob for likely in entry.top_logprobs]
            assert values == sorted(values, reverse=True) and entry.logprob <= values[0]
        spelled = [bytes(entry.bytes or ()) for entry in choice.logprobs.content]
        assert spelled == list(map(tokenizer.token_bytes, ids[i]))
    assert choices.usage.completion_tokens == tokens


def test_log_probabilities_are_the_same_with_and_without_drafts(client: openai.OpenAI) -> None:
    """Greedy, so the text is the same, and the likeliest token is the token itself."""
    request = HELLO | {"temperature": 0, "logprobs": True, "top_logprobs": 2}
    off, on = (
        client.chat.completions.create(**request, extra_body={"dovetail": {"draft_tokens": k}}).choices[0].logprobs
        for k in (0, 3)
    )
    assert len(on.content) == len(off.content) > 5
    for drafted, plain in zip(on.content, off.content, strict=True):
        assert drafted.token == plain.token == drafted.top_logprobs[0].token
        assert drafted.logprob == pytest.approx(plain.logprob, abs=1e-3)


@pytest.mark.slow
def test_penalties_and_min_p_change_the_answer(client: openai.OpenAI) -> None:
    def answered(temperature: float, **fields: float) -> str:
        extra = {"dovetail": {"draft_tokens": fields.pop("draft_tokens", 3)}} | fields
        request = HELLO | {"temperature": temperature, "seed": 3, "extra_body": extra}
        answer = client.chat.completions.create(**request).choices[0].message
        return (answer.content or "") + (getattr(answer, "reasoning_content", None) or "")

    plain, nonsense = answered(0), answered(2)
    assert answered(0, repetition_penalty=5) == answered(0, repetition_penalty=5, draft_tokens=0) != plain
    for penalty in ("frequency_penalty", "presence_penalty"):
        assert answered(2, **{penalty: 2}) not in (plain, nonsense)
    # Only the likeliest token is as likely as the likeliest.
    assert answered(2, min_p=1.0) == plain


def test_an_error_of_the_engine_names_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**HELLO, extra_body={"repetition_penalty": 1e9})
    assert refused.value.param == "repetition_penalty"


def test_a_disconnect_frees_the_blocks(url: str, client: openai.OpenAI) -> None:
    total = gauge(url, "total_blocks")
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello!"}],
        temperature=2,
        max_tokens=3000,
        stop=["no such text"],
        stream=True,
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 30
    while gauge(url, "free_blocks") != total or gauge(url, "running"):
        assert time.monotonic() < deadline, "the blocks of a client that left were not freed"
        time.sleep(0.05)


def test_the_next_turn_of_an_agent_is_in_the_cache_to_its_last_block(url: str) -> None:
    """Prompt and output of the turn before, with its record. The last token of an output was never computed, and the
    drafter's row of a token needs the token after it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": REQUESTS["several tools"][0]}]
    body = {
        "model": "demo",
        "tools": [WEATHER, HOTEL],
        "temperature": 0,
        "dovetail": {"record": True, "return_token_ids": True},
    }
    first = httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": messages}, timeout=60).json()
    message = first["choices"][0]["message"]
    whole = message["dovetail"]["prompt_token_ids"] + message["dovetail"]["token_ids"]
    messages += [message, *({"role": "tool", "tool_call_id": c["id"], "content": "12"} for c in message["tool_calls"])]
    second = httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": messages}, timeout=60).json()
    prompt = second["choices"][0]["message"]["dovetail"]["prompt_token_ids"]
    assert prompt[: len(whole)] == whole
    block = 16
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= (len(whole) - 2) // block * block
