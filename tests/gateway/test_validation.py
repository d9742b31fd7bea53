"""Finished calls are validated at every level: their defects and the metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Event, Message
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.validation import AnswerSchemas, AnswerValidator, ValidatedCall
from dovetail.grammar.schemas.check import Checker
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, prepared
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

TAGS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TOOL = tool("tag", taking({"tags": TAGS}, "tags"))
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tag it."}], "tools": [TOOL]}
OFF = {"dovetail": {"strict": "off"}}
MISMATCH = {"kind": "schema_mismatch", "detail": "call 0: /tags against #/properties/tags/uniqueItems"}


def calling(*arguments: str, name: str = "tag", content: str = "") -> Message:
    calls = tuple(Call(f"functions.{name}:{i}", name, each) for i, each in enumerate(arguments))
    return Message(content=content, reasoning="hm", calls=calls)


async def post(client: httpx.AsyncClient, **fields: Any) -> tuple[dict[str, Any], httpx.Response]:
    """The message, and the whole response."""
    answer = await client.post("/v1/chat/completions", json=BODY | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"], answer


async def metrics(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {
        (s.name, *(value for key, value in s.labels.items() if key != "model")): s.value
        for family in families
        for s in family.samples
    }


def defects(message: dict[str, Any]) -> list[dict[str, str]]:
    listed: list[dict[str, str]] = message.get("dovetail", {}).get("defects", [])
    return listed


async def test_a_keyword_that_no_grammar_enforces_is_validated_afterwards(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.ids = ids_of(calling('{"tags": [1, 1]}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await post(client)
        assert answer.headers["x-dovetail-unenforced"] == "tools[0].function.parameters#/properties/tags/uniqueItems"
        assert message["tool_calls"][0]["function"]["arguments"] == '{"tags": [1, 1]}'
        assert defects(message) == [MISMATCH]
        counts = await metrics(client)
    assert counts["dovetail_defects_total", "schema_mismatch"] == 1
    assert counts["dovetail_calls_total", "schema_mismatch", "tag"] == 1


async def test_a_valid_call_is_not_reported(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(calling('{"tags": [1, 2]}'), tok)
    async with in_process(engine, tok) as client:
        message, answer = await post(client)
        assert "dovetail" not in message
        assert (await metrics(client))["dovetail_calls_total", "none", "tag"] == 1
        _, answer = await post(client, tools=[{"type": "function", "function": {"name": "tag"}}])
        assert "x-dovetail-unenforced" not in answer.headers
        _, answer = await post(client, **OFF)
        assert "x-dovetail-unenforced" not in answer.headers


@pytest.mark.parametrize("level", ["off", "names"])
async def test_calls_are_validated_at_every_level(engine: ScriptedEngine, tok: Tokenizer, level: str) -> None:
    engine.ids = ids_of(calling('{"tags": "secret"}'), tok)
    async with in_process(engine, tok) as client:
        message, _ = await post(client, dovetail={"strict": level})
    assert [defect["kind"] for defect in defects(message)] == ["schema_mismatch"]
    assert "secret" not in defects(message)[0]["detail"]


async def test_a_stream_reports_the_same_defects(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(calling('{"tags": [1, 1]}'), tok)
    async with in_process(engine, tok) as client:
        answer = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
    last = events_of(answer.text)[-2]["choices"][0]
    assert last["delta"]["dovetail"]["defects"] == [MISMATCH]
    assert last["finish_reason"] == "tool_calls"
    assert "x-dovetail-unenforced" in answer.headers


async def test_a_call_that_cannot_be_read_is_counted_and_reported_once(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(calling("tags, please"), tok)
    async with in_process(engine, tok) as client:
        message, _ = await post(client, **OFF)
        assert [defect["kind"] for defect in defects(message)] == ["malformed_call"]
        assert (await metrics(client))["dovetail_calls_total", "invalid_json", "tag"] == 1
        engine.ids = engine.ids[:-6]
        message, _ = await post(client, **OFF)  # cut off at max_tokens
        assert "malformed_call" not in [defect["kind"] for defect in defects(message)]
        engine.ids = ids_of(calling("tags, please", name="rm"), tok)
        message, _ = await post(client, **OFF)  # it names no tool, so it is text
        assert "tags, please" in message["content"] and not message.get("tool_calls")
        assert ("dovetail_calls_total", "unknown_name", "other") not in await metrics(client)


async def test_only_the_call_that_cannot_be_read_is_left_unchecked(engine: ScriptedEngine, tok: Tokenizer) -> None:
    calls = (Call("functions.tag:0", "tag", "no JSON"), Call("functions.tag:1", "tag", '{"tags": "secret"}'))
    engine.ids = ids_of(Message(calls=calls), tok)
    async with in_process(engine, tok) as client:
        message, _ = await post(client, **OFF)
    assert [defect["kind"] for defect in defects(message)] == ["malformed_call", "schema_mismatch"]


async def test_an_unknown_tool_is_counted_without_a_label_of_its_own(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(calling("{}", name="rm"), tok)
    async with in_process(engine, tok) as client:
        message, _ = await post(client, **OFF)
        assert [defect["kind"] for defect in defects(message)] == ["unknown_name"]
        assert (await metrics(client))["dovetail_calls_total", "unknown_name", "other"] == 1


async def test_content_is_checked_against_a_response_format(engine: ScriptedEngine, tok: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"tags": TAGS}}
    response_format = {"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}}
    engine.ids = ids_of(Message(content='{"tags": [1, 1]}', reasoning="hm"), tok)
    async with in_process(engine, tok) as client:
        message, answer = await post(client, tools=None, response_format=response_format)
    listed = "response_format.json_schema.schema#/properties/tags/uniqueItems"
    assert answer.headers["x-dovetail-unenforced"] == listed
    detail = "content: /tags against #/properties/tags/uniqueItems"
    assert defects(message) == [{"kind": "schema_mismatch", "detail": detail}]


async def test_unenforced_keywords_have_to_be_valid_schemas_too(engine: ScriptedEngine, tok: Tokenizer) -> None:
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


async def test_the_unenforced_header_is_short_ascii(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    names = ["A é, ü", 'A"\x7f', *(f"property number {i}" for i in range(100))]
    parameters = {"type": "object", "properties": {name: {"not": {}} for name in names}}
    async with in_process(engine, tok) as client:
        _, answer = await post(
            client, tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        )
    header = answer.headers["x-dovetail-unenforced"]
    assert header.isascii() and header.isprintable() and len(header) < 1100
    *shown, last = header.split(", ")
    where = "tools[0].function.parameters#/properties"
    assert {f"{where}/A%20%C3%A9%2C%20%C3%BC/not", f"{where}/A%22%7F/not"} <= set(shown)
    # The other one is `properties`: DEL can be written in two ways in a JSON string.
    assert last == f"{103 - len(shown)} more"


def test_tools_have_no_names_in_metrics_unless_the_operator_wants_them() -> None:
    page = Metrics()
    metrics = page.of("m", list)
    for call in (ValidatedCall("secret_tool", None), ValidatedCall(None, "unknown_name")):
        metrics.request("chat", RequestReport(method="POST", path="/", id="r", peer="")).step(
            Step(0, [], (), 0, 0, None, calls=(call,))
        )
    text = page.text().decode()
    assert "secret_tool" not in text
    assert 'tool="declared"' in text and 'tool="other"' in text


def test_only_so_many_tools_have_a_label() -> None:
    page = Metrics(tool_names=True)
    metrics = page.of("m", list)
    calls = [ValidatedCall(f"tool{i}", None) for i in range(1000)] + [ValidatedCall(None, "unknown_name")]
    for call in [*calls, calls[3]]:
        metrics.request("chat", RequestReport(method="POST", path="/", id="r", peer="")).step(
            Step(0, [], (), 0, 0, None, calls=(call,))
        )
    families = text_string_to_metric_families(page.text().decode())
    counts = {s.labels["tool"]: s.value for f in families for s in f.samples if s.name == "dovetail_calls_total"}
    assert len(counts) == 65 and counts["tool3"] == 2 and "other" in counts


# -- long validations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [2, 20_000])
async def test_the_event_loop_does_not_wait_for_a_long_validation(items: int) -> None:
    """The events are the same, in the same order."""
    checker = Checker(TOOL["function"]["parameters"], "tools[0].function.parameters")
    arguments = json.dumps({"tags": [*range(items), 1]})
    assert checker.is_quick(arguments) is (items == 2)
    events: list[Event] = [CallStart(0, "a", "tag"), CallArguments(0, arguments), CallEnd(0), Content("Done.")]
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(turning())
    validator = AnswerValidator(AnswerSchemas({"tag": checker}, None))
    checked = [*await validator.feed(events), *await validator.finish("stop")]
    assert (turns > 0) is (items > 2)
    others.cancel()
    defect = Defect("schema_mismatch", MISMATCH["detail"] if items == 2 else "call 0")
    assert checked == [*events[:3], defect, *events[3:]]


@pytest.mark.parametrize(
    ("choice", "required"),
    [("required", True), ({"type": "function", "function": {"name": "tag"}}, True), ("auto", False), (None, False)],
)
async def test_a_required_call_that_is_missing_is_a_defect(tok: Tokenizer, choice: Any, required: bool) -> None:
    """An engine behind HTTP may ignore the grammar."""
    schemas = prepared(tok, tools=[TOOL], tool_choice=choice).schemas
    said: list[Event] = [Content("I would rather not.")]
    called: list[Event] = [CallStart(0, "a", "tag"), CallArguments(0, '{"tags": [1]}'), CallEnd(0)]
    for events, reason, missing in ((said, "stop", required), (said, "length", False), (called, "stop", False)):
        validator = AnswerValidator(schemas)
        defects = [*await validator.feed(events), *await validator.finish(reason)][len(events) :]
        assert [each.kind for each in defects if isinstance(each, Defect)] == ["missing_call"] * missing
