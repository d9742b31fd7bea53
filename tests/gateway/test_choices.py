"""`n` answers to one request: each has its own stop, calls and log probabilities; the usage covers all of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from dovetail.errors import EngineBusy, EngineError
from dovetail.events import Call, CallStart, Message
from dovetail.formats.families.hermes import Hermes
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Prompt, Tokenizer
from tests.gateway.scripted import (
    MODEL,
    ScriptedEngine,
    events_of,
    folded,
    ids_of,
    in_process,
    openai_client,
    serving,
    turn_request,
)
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": MODEL, "messages": USER}
TOOL = tool("f", taking({"a": {"type": "integer"}}))
ANSWERS = [
    Message("Only text, and more of it.", "Thinking first.", ()),
    Message("", "A call.", (Call("functions.f:0", "f", '{"a": 1}'),)),
    Message("Stop. Here, and not there.", "", ()),
    Message("", "", (Call("functions.f:0", "f", '{"a": 2}'), Call("functions.f:1", "f", "{}"))),
]
DEADLINE_S = 30  # only a test that hangs gets there


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (10_000,)], ids=str)
async def test_each_choice_is_a_separate_answer_streamed_or_whole(
    engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...]
) -> None:
    engine.sizes, engine.cached = sizes, 3
    scripts = [ids_of(message, tok) for message in ANSWERS]
    request = BODY | {"n": 4, "tools": [TOOL], "stop": ["Here"], "logprobs": True, "top_logprobs": 1}
    async with in_process(engine, tok) as client:
        engine.scripts = list(scripts)
        whole = (await client.post("/v1/chat/completions", json=request)).json()
        engine.scripts = list(scripts)
        streaming = request | {"stream": True, "stream_options": {"include_usage": True}}
        *events, done = events_of((await client.post("/v1/chat/completions", json=streaming)).text)
    assert done == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert folded(events) == [choice | {"logprobs": choice["logprobs"]["content"]} for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "tool_calls", "stop", "tool_calls"]
    messages = [choice["message"] for choice in whole["choices"]]
    assert [message["content"] for message in messages] == ["Only text, and more of it.", "", "Stop. ", ""]
    assert [message.get("reasoning_content") for message in messages] == ["Thinking first.", "A call.", None, None]
    for shown, message in zip(messages, ANSWERS, strict=True):
        calls = [Call(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in shown.get("tool_calls", ())]
        assert calls == list(message.calls)
    tokens = sum(len(choice["logprobs"]["content"]) for choice in whole["choices"])
    prompt = len(engine.seen[0].prompt)
    assert whole["usage"]["prompt_tokens"] == prompt
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}  # as the first of them says
    assert whole["usage"]["completion_tokens"] == tokens == whole["usage"]["total_tokens"] - prompt
    speculation = whole["usage"]["speculation"]
    assert speculation["drafted"] == 3 * speculation["steps"]
    if sizes == (10_000,):
        assert speculation == {"steps": 4, "drafted": 12, "accepted": sum(map(len, scripts)) - 4, "forced": 4}
    assert engine.running == 0
    assert len({completion.request_id for completion in engine.seen}) == 8


async def test_choices_have_their_own_reproducible_seeds(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok) as client:
        for seed in (7, 2**63 - 2, None):
            answer = await client.post("/v1/chat/completions", json=BODY | {"n": 3, "seed": seed, "temperature": 0.5})
            assert answer.status_code == 200
    seeds = [completion.sampling.seed for completion in engine.seen]
    assert seeds == [7, 8, 9, 2**63 - 2, 2**63 - 1, -(2**63), None, None, None]
    assert {completion.sampling.temperature for completion in engine.seen} == {0.5}


async def test_each_choice_has_its_own_constraint_and_reader(engine: ScriptedEngine, tok: Tokenizer) -> None:
    class Written(Hermes):
        def _render(self, *arguments: Any, **options: Any) -> Prompt:
            return Prompt.alternating([str(arguments[1])])

    request = turn_request(BODY | {"n": 3, "tools": [TOOL]})
    kimi, hermes = (
        TurnRunner(engine, fmt, tok, Settings(served_model_name=MODEL, strict=strict))
        for fmt, strict in ((KimiK25(), "schema"), (Written(), "off"))
    )
    constraints = [choice.completion.constraint for choice in kimi.prepare(request).choices]
    assert None not in constraints and len(set(map(id, constraints))) == 3
    readers = [choice.new_reader() for choice in hermes.prepare(request).choices]
    called = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = [event.id for reader in readers for event in reader.feed(called) if isinstance(event, CallStart)]
    assert len(ids) == len(set(ids)) == 3, "calls of different choices have one id"


async def test_a_waiting_choice_does_not_delay_the_others(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """A disconnect then frees every choice, also those that wait."""
    engine.ids = ids_of(Message("a long story"), tok, thinking=False)
    stuck = asyncio.Event()

    async def first_waits(batch: int) -> None:
        if len(engine.seen) == 1:
            await asyncio.Event().wait()
        if batch == 6:
            stuck.set()
            await asyncio.Event().wait()

    engine.before = first_waits
    request = BODY | {"n": 3, "stream": True, "reasoning_effort": "none"}
    seen: set[int] = set()
    async with serving(engine, tok) as url, httpx.AsyncClient() as client:
        async with (
            asyncio.timeout(DEADLINE_S),
            client.stream("POST", f"{url}/v1/chat/completions", json=request) as got,
        ):
            async for line in got.aiter_lines():
                if line:
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    if choice["delta"].get("content"):
                        seen.add(choice["index"])
                if stuck.is_set() and seen == {1, 2}:
                    break
        assert engine.running == 3
        async with asyncio.timeout(DEADLINE_S):
            await got.aclose()
            while engine.running:
                await asyncio.sleep(0.005)
        metrics = (await client.get(f"{url}/metrics")).text
    assert sorted(engine.freed) == sorted(completion.request_id for completion in engine.seen)
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="disconnected"}} 1.0' in metrics


@pytest.mark.parametrize(("error", "status"), [(EngineError("out of memory"), 500), (EngineBusy("later"), 503)])
async def test_a_failure_ends_the_other_streams(
    engine: ScriptedEngine, tok: Tokenizer, error: Exception, status: int
) -> None:
    engine.ids = ids_of(Message("a long story"), tok, thinking=False)
    calls = 0

    async def fail(batch: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error

    engine.before = fail
    async with in_process(engine, tok) as client:
        whole = await client.post("/v1/chat/completions", json=BODY | {"n": 3, "reasoning_effort": "none"})
        assert (whole.status_code, engine.running) == (status, 0)
        calls = 0
        request = BODY | {"n": 3, "reasoning_effort": "none", "stream": True}
        streamed = events_of((await client.post("/v1/chat/completions", json=request)).text)
    assert engine.running == 0
    assert "[DONE]" not in streamed
    assert streamed[-1]["error"]["message"] == str(error)


async def test_the_official_client_takes_choices(engine: ScriptedEngine, tok: Tokenizer) -> None:
    scripts = [ids_of(message, tok) for message in ANSWERS]
    request: dict[str, Any] = BODY | {"n": 4, "tools": [TOOL], "logprobs": True, "top_logprobs": 2}
    request |= {"frequency_penalty": 0.5, "presence_penalty": 0.5}
    request |= {"extra_body": {"min_p": 0.1, "repetition_penalty": 1.1}}
    async with openai_client(engine, tok) as client:
        engine.scripts = list(scripts)
        whole = await client.chat.completions.create(**request)
        engine.scripts = list(scripts)
        async with client.chat.completions.stream(**request) as stream:
            final = await stream.get_final_completion()
    for mine, theirs in zip(whole.choices, final.choices, strict=True):
        assert (mine.index, mine.finish_reason, mine.logprobs) == (theirs.index, theirs.finish_reason, theirs.logprobs)
        assert (mine.message.content or "") == (theirs.message.content or "")
        calls = [[(c.id, c.function.arguments) for c in one.message.tool_calls or ()] for one in (mine, theirs)]
        assert calls[0] == calls[1]


async def test_metrics_count_one_request_and_all_its_tokens(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.scripts = [ids_of(message, tok) for message in ANSWERS]
    total = sum(map(len, engine.scripts))
    async with in_process(engine, tok) as client:
        await client.post("/v1/chat/completions", json=BODY | {"n": 4, "tools": [TOOL]})
        metrics = (await client.get("/metrics")).text
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="stop"}} 1.0' in metrics
    assert f'dovetail_completion_tokens_total{{model="{MODEL}"}} {total}.0' in metrics
    assert f'dovetail_prompt_tokens_total{{model="{MODEL}"}} {len(engine.seen[0].prompt)}.0' in metrics
    assert f'dovetail_time_to_first_token_seconds_count{{api="chat",model="{MODEL}"}} 1.0' in metrics
    assert f'dovetail_inter_token_seconds_count{{api="chat",model="{MODEL}"}} {total - 4}.0' in metrics
