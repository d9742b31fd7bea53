"""For any tokens in any batches, the deltas of a stream add up to the whole message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.events import Call, CallArguments, CallStart, Event, Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.apis import chat
from dovetail.gateway.apis.chat_request import ChatRequest
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import Turn
from dovetail.tokens import Tokenizer
from tests.examples import examples
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, turn_request

REQUEST = ChatRequest(model=MODEL, messages=[])  # as much of one as a response needs
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLS = (Call("functions.f:0", "f", '{"a": "é🌦\\n", "b": [1.50, {}]}'), Call("functions.f:1", "f", "{}"))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_output_in_any_batches_is_the_same_both_ways(data: st.DataObject, small_tokenizer: Tokenizer) -> None:
    tok = small_tokenizer
    ids = list(ids_of(Message("Wörds. ", "Thinking…", CALLS), tok))
    for at in data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=4), label="wrong tokens at"):
        ids[at] = data.draw(st.integers(0, tok.vocab_size - 1), label="token")
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4), label="batch sizes")
    stop = data.draw(st.lists(st.sampled_from(["ör", "k", '"b"', "1.5", "<|tool", "_end|>"]), max_size=2), label="stop")
    engine = ScriptedEngine(tok)
    engine.ids = tuple(ids)

    engine.sizes = sizes
    turn, steps = run(engine, tok, stop)
    message, finish = streamed(turn, steps)
    whole = json.loads(chat.whole(REQUEST, turn, steps))["choices"][0]
    assert (message, finish) == (whole["message"], whole["finish_reason"])
    # Each token has its log probability once, in order, whatever of its text is buffered or not shown.
    entries = streamed_logprobs(turn, steps)
    assert entries == whole["logprobs"]["content"]
    taken = [token for step in steps for token in step.ids]
    assert [entry["logprob"] for entry in entries] == [-token / 64 for token in taken]
    assert b"".join(bytes(entry["bytes"] or ()) for entry in entries) == b"".join(map(tok.token_bytes, taken))

    engine.sizes = (1,)
    _, one_by_one = run(engine, tok, stop)
    if not stop:
        assert reasoning_tokens(one_by_one) == reasoning_tokens(steps)
    # Token ids are not compared: the scripted engine does not cut them at a stop string.
    assert streamed(turn, one_by_one) == (message, finish)


def reasoning_tokens(steps: list[Step]) -> int:
    return sum(step.reasoning_tokens for step in steps)


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (100,)])
@pytest.mark.parametrize("reasoning", ["", "Let me see…"])
def test_the_tokens_of_a_reasoning_block_are_counted(
    small_tokenizer: Tokenizer, reasoning: str, sizes: tuple[int, ...]
) -> None:
    """The block is open, so they are those up to its closing marker."""
    tok = small_tokenizer
    engine = ScriptedEngine(tok)
    engine.ids, engine.sizes = ids_of(Message("Words. ", reasoning, CALLS), tok), sizes
    turn, steps = run(engine, tok, [])
    block = engine.ids.index(tok.control["</think>"]) + 1
    assert reasoning_tokens(steps) == block
    usage = json.loads(chat.whole(REQUEST, turn, steps))["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": block}


def run(
    engine: ScriptedEngine, tok: Tokenizer, stop: list[str], *, tools: Any = TOOLS, thinking: bool = True
) -> tuple[Turn, list[Step]]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": tools, "stop": stop}
    body |= {"chat_template_kwargs": {"thinking": thinking}, "logprobs": True, "top_logprobs": 2}
    runner = TurnRunner(engine, KimiK25(), tok, Settings(served_model_name=MODEL, strict="off"))
    turn = runner.prepare(turn_request(body))

    async def steps() -> list[Step]:
        return [step async for step in runner.steps(turn)]

    taken = asyncio.run(steps())
    assert engine.running == 0
    assert [step.finish is None for step in taken] == [True] * (len(taken) - 1) + [False]
    return turn, taken


def streamed(turn: Turn, steps: list[Step]) -> tuple[dict[str, Any], str]:
    """The message and the finish reason of a stream."""
    stream = chat.Stream(REQUEST, turn)
    *events, done = events_of((stream.start() + b"".join(map(stream.step, steps))).decode())
    assert done == "[DONE]"
    (choice,) = folded(events)
    return choice["message"], choice["finish_reason"]


def streamed_logprobs(turn: Turn, steps: list[Step]) -> list[dict[str, Any]]:
    """The log probabilities of a stream, in order."""
    stream = chat.Stream(REQUEST, turn)
    *events, _ = events_of((stream.start() + b"".join(map(stream.step, steps))).decode())
    logprobs = [event["choices"][0]["logprobs"] for event in events]
    assert logprobs[0] is None
    assert all(some is None or (some["content"] and some["refusal"] is None) for some in logprobs)
    return [entry for some in logprobs if some is not None for entry in some["content"]]


def test_calls_that_come_side_by_side_stay_apart(small_tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message(), small_tokenizer)
    turn, _ = run(engine, small_tokenizer, [])
    events: list[Event] = [
        CallStart(0, "a", "f"),
        CallStart(1, "b", "f"),
        CallArguments(1, "{}"),
        CallArguments(0, "[]"),
    ]
    message, _ = streamed(turn, [Step(0, events, (), 0, 0, "tool_calls")])
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [("a", "[]"), ("b", "{}")]


@pytest.mark.parametrize("stop", [None, "Wö"], ids=["closed early", "stop string"])
def test_the_engines_stream_is_closed_at_once(small_tokenizer: Tokenizer, stop: str | None) -> None:
    tok = small_tokenizer
    engine = ScriptedEngine(tok)
    engine.ids = ids_of(Message("Wörds and more of them"), tok, thinking=False)
    runner = TurnRunner(engine, KimiK25(), tok, Settings(served_model_name=MODEL))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stop": stop, "reasoning_effort": "none"}
    turn = runner.prepare(turn_request(body))

    async def leave() -> None:
        steps = runner.steps(turn)
        step = await anext(steps)
        if stop is None:
            assert engine.running == 1
            await steps.aclose()
        else:
            while step.finish is None:
                step = await anext(steps)
            # `steps` is not closed yet: a slow client may take long to read the last step.
        # Nothing was awaited in between, so the garbage collector did not close it.
        assert engine.running == 0
        await steps.aclose()

    asyncio.run(leave())


def test_a_call_cut_at_a_stop_string_is_truncated(small_tokenizer: Tokenizer) -> None:
    """Although the arguments happen to be complete where the stop string begins."""
    engine = ScriptedEngine(small_tokenizer)
    answer = Message("", "", (Call("functions.f:0", "f", '{"a": 1} STOP'),))
    engine.ids = ids_of(answer, small_tokenizer, thinking=False)
    turn, steps = run(engine, small_tokenizer, ["}"], thinking=False)
    message, finish = streamed(turn, steps)
    assert finish == "stop"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1'
    assert message["dovetail"]["defects"][0]["kind"] == "truncated_call"


def test_without_tools_nothing_is_a_call(small_tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(small_tokenizer)
    answer = Message("", "", (Call("functions.f:0", "f", '{"a": 1}'),))
    engine.ids = ids_of(answer, small_tokenizer, thinking=False)
    turn, steps = run(engine, small_tokenizer, [], tools=None, thinking=False)
    message, finish = streamed(turn, steps)
    assert "tool_calls" not in message
    written = KimiK25().write(answer, thinking=False).text.removesuffix("<|im_end|>")
    assert (message["content"], finish) == (written, "stop")
