"""For random turns of every format: each event and body is what OpenAI's package and OpenResponses' document say,
OpenAI's own accumulator takes the stream, and it comes out as the body that the turn has without streaming."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.completion import TokenBatch
from dovetail.errors import EngineError
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning, fold
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.apis.responses.exchange import ResponsesExchange
from dovetail.gateway.turn.output import OutputReader, Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.validation import AnswerSchemas, AnswerValidator
from dovetail.tokens import Detokenizer, Tokenizer
from tests.examples import examples, slow_but
from tests.gateway.responses.official import (
    accumulated,
    check_body,
    check_event,
    check_order,
    events_of,
    without_parsed,
)
from tests.gateway.scripted import MODEL, ScriptedEngine
from tests.reading import families
from tests.reading.families import TOOLS

few = examples(10, fuzz=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]


def exchange_of(**body: Any) -> ResponsesExchange:
    return ResponsesExchange(json.dumps({"model": MODEL, "input": "hi", **body}).encode(), None, 1_000)


@functools.cache
def turn_of(tokenizer: Tokenizer) -> PreparedTurn:
    """A turn that is ready to run, for what a response tells of its prompt."""
    return runner_of(tokenizer).prepare(exchange_of().turn_request)


def runner_of(tokenizer: Tokenizer) -> TurnRunner:
    return TurnRunner(ScriptedEngine(tokenizer), KimiK25(), tokenizer, Settings(served_model_name=MODEL, strict="off"))


def steps_of(name: str, ids: Sequence[int], sizes: Sequence[int], finish: Any) -> list[Step]:
    """The steps of an answer of the family, in batches of these sizes, over and over."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    ends = frozenset(tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control)
    reader = fmt.reader(TOOLS, thinking=families.opened(name, True), tokenizer=tokenizer)
    validator = AnswerValidator(AnswerSchemas({}, None))
    output = OutputReader(0, reader, Detokenizer(tokenizer), validator, stop=(), end_ids=ends, speller=None)
    batches: list[tuple[int, ...]] = []
    rest = tuple(ids)
    while rest:
        size = sizes[len(batches) % len(sizes)]
        batches.append(rest[:size])
        rest = rest[size:]

    async def steps() -> list[Step]:
        taken: list[Step] = []
        for batch in batches:
            last = batch is batches[-1]
            taken.append(await output.step(TokenBatch(batch, finish if last else None, drafted=1, accepted=0)))
            if taken[-1].finish is not None:
                break
        return taken

    return asyncio.run(steps())


def both_ways(exchange: ResponsesExchange, turn: PreparedTurn, steps: list[Step]) -> tuple[dict[str, Any], list[Any]]:
    """The body and the events of a turn, after every check that holds for all turns."""
    body = json.loads(exchange.whole(turn, steps))
    stream = exchange.stream(turn)
    sent = stream.start() + b"".join(map(stream.step, steps))
    assert stream.done
    events = events_of(sent.decode())
    check_body(body)
    assert check_order(events) == body["output"]
    assert events[-1]["response"] == body
    assert events[-1]["type"] == f"response.{body['status']}"
    typed = [check_event(event) for event in events]
    done, completed = accumulated(typed)
    assert [item.to_dict() for item in done] == body["output"]
    if body["status"] == "completed":
        assert without_parsed(completed.to_dict()) == body
    return body, events


def message_of(body: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """The content, the reasoning and the calls of a body."""
    content = reasoning = ""
    calls = []
    for item in body["output"]:
        if item["type"] == "message":
            content += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in (*item.get("content", ()), *item["summary"]))
        else:
            calls.append((item["call_id"], item["name"], item["arguments"]))
    return content, reasoning, calls


@pytest.mark.parametrize("name", slow_but(families.NAMES, "kimi_k2", "harmony", "qwen3_coder"))
@few
@given(data=st.data())
def test_any_output_in_any_batches_is_the_same_both_ways(
    name: str, data: st.DataObject, small_tokenizer: Tokenizer
) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    message = data.draw(families.messages(name, reasons=families.reasons(name, True), ids=True), label="message")
    ids = list(data.draw(st.sampled_from([*fmt.forms(message)])).ids(tokenizer)) or [0]
    for at in data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=3), label="wrong tokens at"):
        ids[at] = data.draw(st.integers(0, tokenizer.vocab_size - 1), label="token")
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4), label="batch sizes")
    steps = steps_of(name, ids, sizes, data.draw(st.sampled_from(["stop", "length"]), label="finish"))
    summary = data.draw(st.sampled_from([None, "auto"]), label="summary")
    exchange = exchange_of(tools=FUNCTIONS, reasoning={"summary": summary})
    body, _ = both_ways(exchange, turn_of(small_tokenizer), steps)

    answer = fold(event for step in steps for event in step.events)
    calls = [(call.id, call.name, call.arguments) for call in answer.calls]
    assert message_of(body) == (answer.content, answer.reasoning, calls)
    assert body["usage"]["output_tokens"] == sum(len(step.ids) for step in steps)
    assert (body["status"] == "incomplete") == (steps[-1].finish == "length")


#: Any events that a reader may make: runs of text, and calls that come side by side.
_texts = st.text(min_size=1, max_size=6)
_turns = st.lists(
    st.one_of(
        st.builds(Content, _texts),
        st.builds(Reasoning, _texts),
        st.tuples(st.just("start"), st.sampled_from(["f", "crm__g", "patch", "unknown"])),
        st.tuples(st.just("arguments"), st.integers(0, 5), _texts),
        st.tuples(st.just("end"), st.integers(0, 5)),
    ),
    max_size=25,
)
MIXED = [
    {"type": "function", "name": "f"},
    {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "g"}]},
    {"type": "custom", "name": "patch"},
]


def _events(drawn: list[Any]) -> list[Event]:
    events: list[Event] = []
    open_calls: list[int] = []
    started = 0
    for each in drawn:
        if isinstance(each, Content | Reasoning):
            events.append(each)
        elif each[0] == "start":
            events.append(CallStart(started, f"call:{started}", each[1]))
            open_calls.append(started)
            started += 1
        elif open_calls:
            index = open_calls[each[1] % len(open_calls)]
            if each[0] == "end":
                open_calls.remove(index)
                events.append(CallEnd(index))
            else:
                events.append(CallArguments(index, each[2]))
    return events


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=_turns, cuts=st.lists(st.integers(0, 40), max_size=6), finish=st.sampled_from(["stop", "length"]))
def test_any_events_are_the_same_both_ways(
    drawn: list[Any], cuts: list[int], finish: Any, small_tokenizer: Tokenizer
) -> None:
    """Calls side by side, calls without an end, text behind calls, tools of all kinds."""
    events = _events(drawn)
    places = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    groups = [events[a:b] for a, b in itertools.pairwise(places)] or [[]]
    steps = [Step(0, group, (7,), 1, 1, None) for group in groups[:-1]]
    steps.append(Step(0, groups[-1], (7,), 1, 1, finish))
    exchange = exchange_of(tools=MIXED)
    body, _ = both_ways(exchange, turn_of(small_tokenizer), steps)

    items = body["output"]
    calls = {item["call_id"]: item for item in items if item["type"].endswith("_call")}
    ended = {event.index for event in events if isinstance(event, CallEnd)}
    for event in events:
        if isinstance(event, CallStart):
            item = calls[event.id]
            assert item["status"] == ("completed" if event.index in ended else "incomplete")
            name = {"crm__g": "g"}.get(event.name, event.name)
            assert (item["name"], item.get("namespace")) == (name, "crm" if name == "g" else None)
            assert item["type"] == ("custom_tool_call" if name == "patch" else "function_call")
            pieces = [e.fragment for e in events if isinstance(e, CallArguments) and e.index == event.index]
            assert item.get("arguments", item.get("input")) == "".join(pieces)
    assert len(calls) == sum(isinstance(event, CallStart) for event in events)
    visible = [item for item in items if item["type"] == "message"]
    assert all(item["status"] == "completed" for item in visible[:-1])


def test_a_failure_after_the_start_is_the_streams_last_event(small_tokenizer: Tokenizer) -> None:
    stream = exchange_of().stream(turn_of(small_tokenizer))
    sent = stream.start() + stream.step(Step(0, [Content("Hi")], (7,), 1, 1, None))
    sent += stream.error(EngineError("the engine failed; the server's log has it under request id r"))
    *events, failed = events_of(sent.decode())
    assert [event["type"] for event in events][-1] == "response.output_text.delta"
    check_event(failed)
    assert failed["response"]["error"]["code"] == "server_error"
    assert failed["response"]["status"] == "failed"
