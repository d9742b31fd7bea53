"""For any output of any family, Anthropic's own accumulator makes of the stream what the whole body has."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Message, Reasoning, fold
from dovetail.formats.base import Format
from dovetail.gateway import Settings
from dovetail.gateway.apis import messages
from dovetail.gateway.apis.messages_request import MessagesRequest, decode_messages
from dovetail.gateway.turn.output import FinishReason, Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.tokens import Tokenizer
from tests.examples import examples, slow_but
from tests.gateway.anthropic_sdk import accumulated, checked, sse
from tests.gateway.scripted import MODEL, ScriptedEngine, prepared
from tests.reading import families

REQUEST = MessagesRequest(model=MODEL, messages=[], max_tokens=9)  # as much of one as a response needs


def both(request: MessagesRequest, turn: PreparedTurn, steps: Sequence[Step]) -> dict[str, Any]:
    """The message of `steps`, which is the same streamed and whole."""
    stream = messages.Stream(request, turn)
    data = stream.start()
    for step in steps:
        assert not stream.done
        data += stream.step(step)
    assert stream.done
    whole = checked(messages.whole(request, turn, steps))
    assert accumulated(sse(data)) == whole
    return whole


@pytest.mark.parametrize("name", slow_but(families.NAMES, "kimi_k2", "harmony", "qwen3_coder"))
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_output_of_any_family(name: str, data: st.DataObject, small_tokenizer: Tokenizer) -> None:
    turn = _turn(small_tokenizer)
    output = data.draw(families.outputs(name), label="output")
    pieces = families.cut(output, data.draw(families.cuts, label="cuts"))
    reason = data.draw(st.sampled_from(("stop", "length")), label="reason")
    reader = families.format_of(name).reader(families.TOOLS)
    events = [reader.feed(piece) for piece in pieces] + [reader.finish(reason)]
    message = both(REQUEST, turn, steps_of(events))
    tells_the_same(message, [event for some in events for event in some])
    # Other cuts tell the same.
    joined = [[event for some in events for event in some]]
    assert both(REQUEST, turn, steps_of(joined))["content"] == message["content"]


@functools.cache
def _turn(tokenizer: Tokenizer) -> PreparedTurn:
    return prepared(tokenizer)


def steps_of(events: Sequence[list[Event]], finish: FinishReason = "stop") -> list[Step]:
    last = len(events) - 1
    return [Step(0, some, (7,), 0, 0, finish if i == last else None) for i, some in enumerate(events)]


def tells_the_same(message: dict[str, Any], events: Sequence[Event]) -> None:
    """Blocks have every text of the events in order, and every call that ended with its arguments."""
    expected = fold(events)
    blocks = message["content"]
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == expected.content
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == expected.reasoning
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [(call["id"], call["name"]) for call in calls] == [(call.id, call.name) for call in expected.calls]
    for event in events:
        if isinstance(event, CallEnd):
            assert calls[event.index]["input"] == json.loads(expected.calls[event.index].arguments)
    # One block for each run of one kind; text inside a call counts as after it.
    order = [kind for kind in map(_kind, events) if kind]
    assert [block["type"] for block in blocks if block["type"] == "thinking"] == ["thinking"] * sum(
        kind == "thinking" and (i == 0 or order[i - 1] != "thinking") for i, kind in enumerate(order)
    )


def _kind(event: Event) -> str:
    kinds = {Content: "text", Reasoning: "thinking", CallStart: "tool_use"}
    return kinds.get(type(event), "")


def test_text_inside_a_call_comes_after_it(small_tokenizer: Tokenizer) -> None:
    events: list[Event] = [
        CallStart(0, "a", "f"),
        CallArguments(0, '{"n": ' + "7" * 100),  # longer than what is followed digit by digit
        Content("oh"),
        Defect("text_in_section"),
        Content("!"),
        CallArguments(0, ', "m": 1}'),
        CallEnd(0),
        Content(" So"),
        CallStart(1, "b", "f"),
        CallArguments(1, '{"cut": "of'),
        Content("end"),
        Reasoning("hm"),
    ]
    for some in ([[event] for event in events], [events]):
        message = both(REQUEST, _turn(small_tokenizer), steps_of(some, "length"))
        received = [block.get("input", block.get("text", block.get("thinking"))) for block in message["content"]]
        assert received == [{"n": int("7" * 100), "m": 1}, "oh! So", {}, "end", "hm"]
        assert message["stop_reason"] == "max_tokens"


# -- whole turns ------------------------------------------------------------------------------------------------------

#: The families whose prompts need no template, and show tools.
SETTINGS = Settings(served_model_name=MODEL, strict="off", record_key=b"sesame")
RENDERING: tuple[str, ...] = ("kimi_k2", "kimi_k2_thinking", "kimi_k25", "kimi_k3", "deepseek_v31", "deepseek_v32")
RENDERING += ("deepseek_v4", "deepseek_v41", "harmony")
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000}
TOOLS = [
    {"name": tool["function"]["name"], "input_schema": tool["function"].get("parameters", {"type": "object"})}
    for tool in families.TOOLS
]


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    """A tokenizer with the control tokens of a family's prompts and answers."""
    fmt = families.format_of(name)
    prompt = fmt.render([{"role": role, "content": "hi"} for role in ("system", "user")], families.TOOLS)
    literals = (*families.controls(name), *(s.text for s in prompt.segments if s.control), "<|im_end|>")
    return families.PieceTokenizer(dict.fromkeys(literals), ("ing", " the"))


def run(
    name: str, ids: Sequence[int], sizes: Sequence[int], **body: Any
) -> tuple[MessagesRequest, PreparedTurn, list[Step]]:
    """The steps of a turn in which the model generates `ids`."""
    fmt: Format = families.format_of(name)
    engine = ScriptedEngine(tokenizer_of(name), context=100_000)
    engine.ids, engine.sizes, engine.cached = tuple(ids), sizes, 3
    request = decode_messages(json.dumps(BODY | body).encode())
    runner = TurnRunner(engine, fmt, tokenizer_of(name), SETTINGS)
    turn = runner.prepare(msgspec.structs.replace(messages.turn_request(request), id="msg_1"))

    async def steps() -> list[Step]:
        return [step async for step in runner.steps(turn)]

    return request, turn, asyncio.run(steps())


@pytest.mark.parametrize("name", RENDERING)
@examples(25)
@given(data=st.data())
def test_any_turn_of_any_format(name: str, data: st.DataObject) -> None:
    fmt, tokenizer = families.format_of(name), tokenizer_of(name)
    thinking = data.draw(st.booleans(), label="thinking")
    drawn = data.draw(families.messages(name, reasons=families.reasons(name, thinking)), label="answer")
    ids = fmt.write(drawn, thinking=thinking).ids(tokenizer)
    for at in data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=2), label="wrong tokens at"):
        ids[at] = data.draw(st.integers(0, tokenizer.vocab_size - 1), label="token")
    body = {
        "tools": TOOLS,
        "thinking": {"type": "adaptive" if thinking else "disabled"},
        "stop_sequences": data.draw(st.lists(st.sampled_from(["he", "3", '"}', "\n"]), max_size=2), label="stop"),
        "max_tokens": data.draw(st.integers(1, 2 * len(ids)), label="max_tokens"),
    }
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4), label="batch sizes")
    request, turn, steps = run(name, ids, sizes, **body)
    message = both(request, turn, steps)
    tells_the_same(message, [event for step in steps for event in step.events])
    one_by_one = both(*run(name, ids, (1,), **body))
    assert one_by_one["content"] == message["content"]
    assert one_by_one["stop_reason"] == message["stop_reason"]
    assert one_by_one["stop_sequence"] == message["stop_sequence"]
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == len(turn.prompt)
    assert message["usage"]["output_tokens"] == sum(len(step.ids) for step in steps)


def test_the_message_is_the_models() -> None:
    for name in RENDERING:
        fmt = families.format_of(name)
        thinks = families.reasons(name, thinking=True)
        answer = Message("CONTENT", "REASONING" if thinks else "", families.SAMPLE.calls[:1])
        _, turn, steps = run(name, fmt.write(answer).ids(tokenizer_of(name)), (3, 1), tools=TOOLS)
        blocks = both(REQUEST, turn, steps)["content"]
        received = [(b["type"], b.get("thinking") or b.get("text") or b.get("name")) for b in blocks]
        expected = [("thinking", "REASONING")] * thinks + [("text", "CONTENT")]
        assert received == [*expected, ("tool_use", "get_weather")], name
        assert blocks[-1]["input"] == {"city": "VALUE", "days": 3}
