"""Finished calls are checked whatever was enforced: what is told, what is counted, and what is asked for again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.completion import Completion, TokenBatch
from dovetail.conversation import Call, Message
from dovetail.gateway import Settings
from dovetail.gateway.metrics import Metrics
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, in_process, written

pytestmark = pytest.mark.anyio

TAGS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TOOL = {
    "type": "function",
    "function": {"name": "tag", "parameters": {"type": "object", "properties": {"tags": TAGS}, "required": ["tags"]}},
}
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tag it."}], "tools": [TOOL]}
OFF = {"dovetail": {"strict": "off"}}
MISMATCH = {"kind": "schema_mismatch", "detail": "call 0: /tags against #/properties/tags/uniqueItems"}


def said(*arguments: str, name: str = "tag", content: str = "") -> Message:
    calls = tuple(Call(f"functions.{name}:{i}", name, each) for i, each in enumerate(arguments))
    return Message(content=content, reasoning="hm", calls=calls)


async def asked(client: httpx.AsyncClient, **fields: Any) -> tuple[dict[str, Any], httpx.Response]:
    """The message, and all of the answer."""
    answer = await client.post("/v1/chat/completions", json=BODY | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"], answer


async def metrics(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def defects(message: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = message.get("dovetail", {}).get("defects", [])
    return found


async def test_a_keyword_that_no_grammar_has_is_no_reason_to_refuse(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said('{"tags": [1, 1]}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await asked(client)
        assert answer.headers["x-dovetail-unenforced"] == "tools[0].function.parameters#/properties/tags/uniqueItems"
        assert message["tool_calls"][0]["function"]["arguments"] == '{"tags": [1, 1]}'
        assert defects(message) == [MISMATCH]
        counts = await metrics(client)
    assert counts["dovetail_defects_total", "schema_mismatch"] == 1
    assert counts["dovetail_calls_total", "schema_mismatch", "tag"] == 1


async def test_a_valid_call_has_nothing_to_tell(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said('{"tags": [1, 2]}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await asked(client)
        assert "dovetail" not in message
        assert "retries" not in answer.json()["usage"]
        assert (await metrics(client))["dovetail_calls_total", "none", "tag"] == 1
        _, answer = await asked(client, tools=[{"type": "function", "function": {"name": "tag"}}])
        assert "x-dovetail-unenforced" not in answer.headers
        _, answer = await asked(client, **OFF)
        assert "x-dovetail-unenforced" not in answer.headers


@pytest.mark.parametrize("level", ["off", "names"])
async def test_every_level_checks(engine: ScriptedEngine, tok: Tokenizer, level: str) -> None:
    engine.ids = written(said('{"tags": "secret"}'), tok)
    async with in_process(engine, tok) as client:
        message, _ = await asked(client, dovetail={"strict": level})
    assert [defect["kind"] for defect in defects(message)] == ["schema_mismatch"]
    assert "secret" not in defects(message)[0]["detail"]


async def test_a_stream_tells_the_same(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said('{"tags": [1, 1]}'), tok)
    async with in_process(engine, tok) as client:
        answer = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
    last = events_of(answer.text)[-2]["choices"][0]
    assert last["delta"]["dovetail"]["defects"] == [MISMATCH]
    assert last["finish_reason"] == "tool_calls"
    assert "x-dovetail-unenforced" in answer.headers


async def test_what_the_reader_could_not_end_is_invalid_json(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said('{"tags": [1,,]}'), tok)
    async with in_process(engine, tok) as client:
        message, _ = await asked(client, **OFF)
        assert [defect["kind"] for defect in defects(message)] == ["invalid_arguments", "invalid_json"]
        assert (await metrics(client))["dovetail_calls_total", "invalid_json", "tag"] == 1
        engine.ids = engine.ids[:-6]
        message, _ = await asked(client, **OFF)  # which is cut off, and so no wonder
    assert "invalid_json" not in [defect["kind"] for defect in defects(message)]


async def test_a_name_that_is_no_tools_is_counted_and_no_label(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said("{}", name="rm"), tok)
    async with in_process(engine, tok) as client:
        message, _ = await asked(client, **OFF)
        assert [defect["kind"] for defect in defects(message)] == ["unknown_name"]
        assert (await metrics(client))["dovetail_calls_total", "unknown_name", "other"] == 1


async def test_content_is_checked_against_a_response_format(engine: ScriptedEngine, tok: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"tags": TAGS}}
    wanted = {"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}}
    engine.ids = written(Message(content='{"tags": [1, 1]}', reasoning="hm"), tok)
    async with in_process(engine, tok) as client:
        message, answer = await asked(client, tools=None, response_format=wanted)
    listed = "response_format.json_schema.schema#/properties/tags/uniqueItems"
    assert answer.headers["x-dovetail-unenforced"] == listed
    detail = "content: /tags against #/properties/tags/uniqueItems"
    assert defects(message) == [{"kind": "schema_mismatch", "detail": detail}]


async def test_a_schema_that_is_none_is_only_shown_where_it_is_not_enforced(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    broken = {"type": "function", "function": {"name": "tag", "parameters": {"properties": {"a": {"pattern": "["}}}}}
    engine.ids = written(said('{"a": 1}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await asked(client, tools=[broken], dovetail={"strict": "names"})
        assert defects(message) == []
        assert answer.headers["x-dovetail-unenforced"] == "tools[0].function.parameters"
        refused = await client.post("/v1/chat/completions", json=BODY | {"tools": [broken]})
    assert refused.status_code == 400
    assert "#/properties/a/pattern" in refused.json()["error"]["message"]


async def test_what_the_grammar_leaves_out_has_to_be_a_schema_too(engine: ScriptedEngine, tok: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": "yes"}}}
    tool = {"type": "function", "function": {"name": "tag", "strict": True, "parameters": parameters}}
    async with in_process(engine, tok) as client:
        refused = await client.post(
            "/v1/chat/completions", json=BODY | {"tools": [TOOL | {"function": {"name": "a"}}, tool]}
        )
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools[1].function.parameters")
    assert "tools[1].function.parameters cannot be enforced: #/properties/tags/uniqueItems: " in error["message"]
    assert '"strict": "names"' in error["message"]


async def test_a_tool_that_does_not_ask_for_it_may_be_sloppy(engine: ScriptedEngine, tok: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"tags": {"type": "array", "required": True, "title": None}}}
    tool = {"type": "function", "function": {"name": "tag", "parameters": parameters}}
    engine.ids = written(said('{"tags": [1]}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await asked(client, tools=[tool])
    assert defects(message) == []
    assert answer.headers["x-dovetail-unenforced"] == "tools[0].function.parameters#/properties/tags/required"


async def test_the_header_is_ascii_and_not_endless(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(Message(content="ok", reasoning="hm"), tok)
    names = ["A é, ü", 'A"\x7f', *(f"property number {i}" for i in range(100))]
    parameters = {"type": "object", "properties": {name: {"not": {}} for name in names}}
    async with in_process(engine, tok) as client:
        _, answer = await asked(
            client, tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        )
    header = answer.headers["x-dovetail-unenforced"]
    assert header.isascii() and header.isprintable() and len(header) < 1100
    *shown, last = header.split(", ")
    where = "tools[0].function.parameters#/properties"
    assert {f"{where}/A%20%C3%A9%2C%20%C3%BC/not", f"{where}/A%22%7F/not"} <= set(shown)
    # And `properties`, as DEL may be spelled in two ways.
    assert last == f"{103 - len(shown)} more"


def test_there_are_no_more_labels_than_so_many_tools() -> None:
    counted = Metrics(dict)
    labels = {counted._tool(f"tool{i}") for i in range(1000)} | {counted._tool(None)}
    assert len(labels) == 65
    assert "other" in labels
    assert counted._tool("tool3") == "tool3"


# -- asked again ------------------------------------------------------------------------------------------------------

GOOD, BAD = '{"tags": [1, 2]}', '{"tags": [1, 1]}'
AGAIN = Settings(served_model_name=MODEL, retry_invalid=2)


class Attempts(ScriptedEngine):
    """Says the next of `attempts`, whole answers, from behind what of it is in the prompt."""

    attempts: list[tuple[int, ...]]

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        began = len((self.seen or [completion])[0].prompt)
        self.scripts = [self.attempts.pop(0)[len(completion.prompt) - began :]]
        return super().complete(completion)


async def test_an_invalid_call_is_asked_for_again(tok: Tokenizer) -> None:
    engine = Attempts(tok)
    bad, good = (written(said(call, content="Tags. "), tok) for call in (BAD, GOOD))
    engine.attempts = [bad, good]
    async with in_process(engine, tok, AGAIN) as client:
        message, answer = await asked(client, seed=7)
        counts = await metrics(client)
    assert message["content"] == "Tags. "
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [GOOD]
    assert defects(message) == []
    first, second = engine.seen
    shown = len(second.prompt) - len(first.prompt)
    assert second.prompt == first.prompt + good[:shown]
    assert tok.decode(good[:shown]).startswith("hm</think>Tags.")
    assert second.max_tokens == first.max_tokens - shown
    assert (first.sampling.seed, second.sampling.seed) == (7, 8)
    assert first.request_id != second.request_id
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == len(good)
    assert usage["retries"]["times"] == 1
    assert 0 < usage["retries"]["completion_tokens"] <= len(bad) - shown
    assert counts["dovetail_retries_total",] == 1
    assert counts["dovetail_dropped_tokens_total",] == usage["retries"]["completion_tokens"]
    assert ("dovetail_calls_total", "schema_mismatch", "tag") not in counts
    assert engine.running == 0


@pytest.mark.parametrize("sizes", [(1,), (4, 1, 3), (10_000,)])
async def test_a_client_sees_nothing_of_what_was_dropped(tok: Tokenizer, sizes: tuple[int, ...]) -> None:
    engine = Attempts(tok)
    engine.sizes = sizes
    engine.attempts = [written(said(call, content="Tags. "), tok) for call in (BAD, GOOD)]
    async with in_process(engine, tok, AGAIN) as client:
        answer = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
    deltas = [event["choices"][0]["delta"] for event in events_of(answer.text)[:-1] if event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == GOOD
    assert "".join(delta.get("content", "") for delta in deltas) == "Tags. "
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert not any("dovetail" in delta for delta in deltas)
    assert len(engine.seen) == 2


async def test_the_last_one_is_told_as_it_is(engine: ScriptedEngine, tok: Tokenizer) -> None:
    bad = written(said(BAD), tok)
    engine.sizes = (10_000,)  # nothing was shown of any
    engine.scripts = [bad] * 3
    async with in_process(engine, tok, AGAIN) as client:
        message, answer = await asked(client)
    assert defects(message) == [MISMATCH]
    assert answer.json()["usage"]["retries"] == {"times": 2, "completion_tokens": 2 * len(bad)}
    assert len(engine.seen) == 3


async def test_nothing_is_asked_again_that_would_be_the_same(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(said(BAD), tok)
    async with in_process(engine, tok, AGAIN) as client:
        message, _ = await asked(client, temperature=0)
        assert defects(message) == [MISMATCH]
        engine.ids = written(said(GOOD), tok)
        await asked(client)
        engine.ids = written(Message(content="ok", reasoning="hm"), tok)
        await asked(client)
    assert len(engine.seen) == 3


async def test_an_engine_behind_http_shows_nothing_until_the_turn_is_over(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.info = type(engine.info)(4096, tok.vocab_size, engine.info.eos_ids, 3, "structural_tag")
    engine.scripts = [written(said(BAD, content="Tags. "), tok), written(said(GOOD, content="Tags. "), tok)]
    async with in_process(engine, tok, AGAIN) as client:
        message, answer = await asked(client)
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [GOOD]
    assert engine.seen[0].prompt == engine.seen[1].prompt
    assert engine.seen[1].grammar is not None
    listed = answer.headers["x-dovetail-unenforced"].split(", ")
    assert listed == ["tools[0].function.parameters#/properties/tags/uniqueItems"]


async def test_choices_are_asked_again_each_for_itself(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.sizes = (10_000,)
    engine.scripts = [written(said(BAD), tok), written(said(GOOD), tok), written(said('{"tags": []}'), tok)]
    async with in_process(engine, tok, AGAIN) as client:
        answer = await client.post("/v1/chat/completions", json=BODY | {"n": 2})
    calls = [choice["message"]["tool_calls"][0]["function"]["arguments"] for choice in answer.json()["choices"]]
    assert sorted(calls) == sorted((GOOD, '{"tags": []}'))
    assert answer.json()["usage"]["retries"]["times"] == 1
    assert json.loads(calls[0])["tags"] in ([], [1, 2])
