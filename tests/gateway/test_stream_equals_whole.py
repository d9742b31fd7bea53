"""The official client gets the message that the model generated, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from dovetail.completion import EngineInfo, Sampling
from dovetail.events import Call, Message
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, openai_client
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

WEATHER = tool(
    "get_weather",
    taking({"city": {"type": "string"}, "days": {"type": "integer"}}, "city", additionalProperties=False),
    description="The weather in a city.",
)
TIME = tool("get-time.now", taking({}, additionalProperties=False))
USER = [{"role": "user", "content": "What is the weather in Paris, and what time is it?"}]
PARIS = Call("functions.get_weather:0", "get_weather", '{"city": "Paris — «été» 🌦", "days": 3}')
LYON = Call("functions.get_weather:1", "get_weather", '{"city": "Ly\\"on\\n"}')
NOW = Call("functions.get-time.now:2", "get-time.now", "{}")

ANSWERS = {
    "content": Message(content="It rains. 🌧️ Überall <|tool_call_end|> is only text."),
    "reasoning": Message(content="It rains.", reasoning="Let me see…\n\nYes."),
    "one call": Message(reasoning="I need the weather.", calls=(PARIS,)),
    "several calls": Message(content="I will look. ", reasoning="Three calls.", calls=(PARIS, LYON, NOW)),
    "nothing": Message(),
}
SIZES = {"1 token a step": (1,), "speculative": (4, 1, 3, 2), "all at once": (10_000,)}


async def folded(stream: Any) -> tuple[dict[str, Any], str | None]:
    """A stream's deltas added up as clients do it: (message, finish reason)."""
    message: dict[str, Any] = {"content": None, "reasoning_content": None, "calls": []}
    finish = None
    async for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            finish = choice.finish_reason or finish
            if delta.content is not None:
                message["content"] = (message["content"] or "") + delta.content
            if (reasoning := getattr(delta, "reasoning_content", None)) is not None:
                message["reasoning_content"] = (message["reasoning_content"] or "") + reasoning
            for call in delta.tool_calls or ():
                if call.id is not None:
                    assert call.index == len(message["calls"])
                    assert call.type == "function"
                    message["calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                message["calls"][call.index]["arguments"] += call.function.arguments
    return message, finish


def whole(completion: Any) -> tuple[dict[str, Any], str]:
    choice = completion.choices[0]
    message = choice.message
    calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", None)
    return {"content": message.content, "reasoning_content": reasoning, "calls": calls}, choice.finish_reason


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not thinking"])
async def test_the_same_message_both_ways(
    engine: ScriptedEngine, tok: Tokenizer, thinking: bool, sizes: tuple[int, ...]
) -> None:
    engine.sizes = sizes
    async with openai_client(engine, tok, Settings(served_model_name=MODEL, allow_silent=True)) as client:
        for name, answer in ANSWERS.items():
            answer = answer if thinking else Message(answer.content, "", answer.calls)
            engine.ids = ids_of(answer, tok, thinking=thinking)
            request: dict[str, Any] = {
                "model": MODEL,
                "messages": USER,
                "tools": [WEATHER, TIME],
                "extra_body": {"chat_template_kwargs": {"thinking": thinking}},
            }
            streamed = await folded(await client.chat.completions.create(**request, stream=True))
            at_once = whole(await client.chat.completions.create(**request))
            assert streamed == at_once, name
            message, finish = at_once
            assert message["content"] == answer.content
            assert message["reasoning_content"] == (answer.reasoning or None)
            assert [Call(**call) for call in message["calls"]] == list(answer.calls)
            assert finish == ("tool_calls" if answer.calls else "stop")
    assert engine.running == 0
    assert len(engine.freed) == len(engine.seen) == 2 * len(ANSWERS)


async def test_the_clients_own_accumulator_agrees(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ANSWERS["several calls"], tok)
    engine.sizes = (4, 1)
    history = [*USER, {"role": "assistant", "content": None, "tool_calls": [_foreign_call()]}, _result()]
    request: dict[str, Any] = {"model": MODEL, "messages": history, "tools": [WEATHER, TIME]}
    async with openai_client(engine, tok) as client:
        at_once = await client.chat.completions.create(**request)
        async with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
            final = await stream.get_final_completion()
    mine = at_once.choices[0].message.model_dump(exclude_none=True)
    theirs = final.choices[0].message.model_dump(exclude_none=True)
    for call in theirs["tool_calls"]:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    assert mine["dovetail"]["repairs"], "the foreign call id was not reported"
    assert theirs == mine
    assert final.usage is not None and at_once.usage is not None
    assert final.usage.model_dump() == at_once.usage.model_dump()


def _foreign_call() -> dict[str, Any]:
    return {"id": "call_abc", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


def _result() -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_abc", "content": "sun"}


async def test_chunks_have_the_order_that_clients_expect(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ANSWERS["several calls"], tok)
    engine.sizes = (2,)
    engine.cached = 2
    body = {"stream": True, "stream_options": {"include_usage": True}, "tools": [WEATHER, TIME]}
    async with in_process(engine, tok) as client:
        response = await post(client, **body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    *deltas, last, usage = chunks
    assert deltas[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["usage"] is None for c in [*deltas, last])
    assert [c["choices"][0]["finish_reason"] for c in deltas] == [None] * len(deltas)
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    assert usage["choices"] == []
    steps = -(-len(engine.ids) // 2)
    assert usage["usage"] == {
        "prompt_tokens": len(engine.seen[0].prompt),
        "completion_tokens": len(engine.ids),
        "total_tokens": len(engine.seen[0].prompt) + len(engine.ids),
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": engine.ids.index(tok.control["</think>"]) + 1},
        "speculation": {
            "steps": steps,
            "drafted": 3 * steps,
            "accepted": len(engine.ids) - steps,
            "forced": steps,
        },
    }
    kinds = [kind for c in deltas[1:] for kind in c["choices"][0]["delta"]]
    assert kinds == sorted(kinds, key=["reasoning_content", "content", "tool_calls"].index)
    opening = next(c for c in deltas if "tool_calls" in c["choices"][0]["delta"])
    assert opening["choices"][0]["delta"]["tool_calls"] == [
        {
            "index": 0,
            "id": "functions.get_weather:0",
            "type": "function",
            "function": {"name": "get_weather", "arguments": ""},
        }
    ]


async def test_without_include_usage_no_chunk_has_usage(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ANSWERS["content"], tok, thinking=False)
    async with in_process(engine, tok) as client:
        response = await post(client, stream=True, reasoning_effort="none")
    *chunks, _ = events_of(response.text)
    assert chunks and not any("usage" in chunk for chunk in chunks)


async def test_cut_by_max_tokens_says_length(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ANSWERS["one call"], tok)
    async with openai_client(engine, tok) as client:
        request: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": [WEATHER]}
        for bound in ("max_tokens", "max_completion_tokens"):
            cut = len(engine.ids) - 12
            request["extra_body"] = {bound: cut}
            streamed = await folded(await client.chat.completions.create(**request, stream=True))
            answer = await client.chat.completions.create(**request)
            assert streamed == whole(answer)
            assert answer.choices[0].finish_reason == "length"
            assert answer.usage is not None and answer.usage.completion_tokens == cut
            assert answer.choices[0].message.model_dump()["dovetail"]["defects"][0]["kind"] == "truncated_call"


async def test_stop_strings_end_the_answer_and_are_not_shown(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="one, two, three, four"), tok, thinking=False)
    for sizes in SIZES.values():
        engine.sizes = sizes
        async with openai_client(engine, tok) as client:
            request: dict[str, Any] = {"model": MODEL, "messages": USER, "stop": [" thr", "four"]}
            request["reasoning_effort"] = "none"
            streamed = await folded(await client.chat.completions.create(**request, stream=True))
            at_once = whole(await client.chat.completions.create(**request))
        assert streamed == at_once == ({"content": "one, two,", "reasoning_content": None, "calls": []}, "stop")
    assert engine.running == 0


async def test_token_ids_are_returned_on_request(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ANSWERS["reasoning"], tok)
    engine.sizes = (3,)
    async with in_process(engine, tok) as client:
        answer = (await post(client, dovetail={"return_token_ids": True})).json()
        streamed = events_of((await post(client, dovetail={"return_token_ids": True}, stream=True)).text)
    expected = {"prompt_token_ids": list(engine.seen[0].prompt), "token_ids": list(engine.ids)}
    assert answer["choices"][0]["message"]["dovetail"] == expected
    assert streamed[-2]["choices"][0]["delta"] == {"dovetail": expected}


async def test_the_requests_fields_reach_the_engine(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    async with in_process(engine, tok) as client:
        await post(client)
        await post(client, temperature=0, top_p=0.5, top_k=7, seed=3)
        await post(client, min_p=0.25, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.5)
        await post(client, max_tokens=9, stop="x", dovetail={"draft_tokens": 0})
        await post(client, top_k=-1)
        await post(client, user="me", metadata={"a": "b"}, store=False, n=1, logprobs=False, a_field_of_a_proxy=1)
    plain, sampled, penalised, bounded, off, _ = engine.seen
    penalties = Sampling(min_p=0.25, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.5)
    assert penalised.sampling == penalties
    assert plain.sampling == Sampling(temperature=1, top_p=1, top_k=None, seed=None)
    assert plain.max_tokens == engine.info.context - len(plain.prompt)
    assert plain.draft_tokens is None and not plain.grammar_required
    assert sampled.sampling == Sampling(temperature=0, top_p=0.5, top_k=7, seed=3)
    assert (bounded.max_tokens, bounded.stop, bounded.draft_tokens) == (9, ("x",), 0)
    assert off.sampling.top_k is None
    assert len({completion.request_id for completion in engine.seen}) == 6


async def test_the_constraint_follows_the_request(engine: ScriptedEngine, tok: Tokenizer) -> None:
    planet = Call("functions.get_weather:0", "get_weather", '{"planet": 3}')
    wrong = ids_of(Message(calls=(planet,)), tok, thinking=False)
    two = ids_of(Message(calls=(PARIS, LYON)), tok, thinking=False)
    none = ids_of(Message(content="no"), tok, thinking=False)

    def allows(ids: tuple[int, ...]) -> bool:
        constraint = engine.seen[-1].constraint
        return constraint is None or all(constraint.advance(token) for token in ids[:-1])

    engine.ids = ids_of(Message(content=""), tok, thinking=False)
    async with in_process(engine, tok) as client:
        body: dict[str, Any] = {"tools": [WEATHER], "reasoning_effort": "none"}
        for extra, expected in (
            ({}, (False, True, True)),
            ({"dovetail": {"strict": "names"}}, (True, True, True)),
            ({"dovetail": {"strict": "off"}}, (True, True, True)),
            ({"parallel_tool_calls": False}, (False, False, True)),
            ({"tool_choice": "none"}, (False, False, True)),
        ):
            answers = []
            for ids in (wrong, two, none):
                await post(client, **body, **extra)
                answers.append(allows(ids))
            assert tuple(answers) == expected, extra
        required = await post(client, **body, tool_choice="required")
        mask = memoryview(bytearray(4 * -(-tok.vocab_size // 32)))
        assert engine.seen[-1].constraint is not None
        engine.seen[-1].constraint.fill(mask)
        end = tok.control["<|im_end|>"]
        assert not mask[end // 8] >> end % 8 & 1, "a required call may be left out"
    assert required.status_code == 200


async def test_an_end_token_ends_the_answer_even_if_the_engine_goes_on(engine: ScriptedEngine, tok: Tokenizer) -> None:
    ids = ids_of(Message(content="done"), tok)
    engine.info = EngineInfo(4096, tok.vocab_size, (tok.control["[EOS]"],), 3)
    engine.ids = ids + ids_of(Message(content="and on"), tok)
    engine.sizes = (len(ids) + 2, 3)
    async with in_process(engine, tok) as client:
        answer = (await post(client, logprobs=True, dovetail={"strict": "off"})).json()
    assert answer["choices"][0]["message"]["content"] == "done"
    assert len(answer["choices"][0]["logprobs"]["content"]) == len(ids)
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert engine.running == 0


async def test_models_health_and_request_ids(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    async with openai_client(engine, tok) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        assert engine.started == 1
    assert engine.started == 0
    async with in_process(engine, tok) as plain:
        assert (await plain.get("/health")).json()["status"] == "ok"
        echoed = await plain.get("/health", headers={"x-request-id": "abc-1"})
        assert echoed.headers["x-request-id"] == "abc-1"
        for insane in ("a b", "x" * 200, "<script>"):
            made = (await plain.get("/health", headers={"x-request-id": insane})).headers["x-request-id"]
            assert made != insane and len(made) == 32
        assert (await plain.get("/nowhere")).headers["x-request-id"]


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    content = json.dumps({"model": MODEL, "messages": USER, **body})
    response = await client.post("/v1/chat/completions", content=content)
    assert response.status_code == 200, response.text
    return response
