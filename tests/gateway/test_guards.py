"""A silent answer is continued once, and the client sees one answer; a loop is reported, ended or broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.completion import Completion, TokenBatch
from dovetail.events import Call, Message, fold, is_visible
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.turn.guards import must_speak
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Tokenizer
from tests.examples import examples
from tests.gateway.families import OpensReasoning
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, in_process, turn_request

USER = [{"role": "user", "content": "hi"}]
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
#: Without a grammar, as behind an engine that has none.
FREE = Settings(served_model_name=MODEL, strict="off")
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def end_of(tok: Tokenizer) -> int:
    return tok.control["<|im_end|>"]


def silent(tok: Tokenizer, thought: str = "Hm.", *, closed: bool) -> tuple[int, ...]:
    """The tokens of an answer that ends after its reasoning, or in it."""
    return (*tok.encode(thought), *((tok.control["</think>"],) if closed else ()), end_of(tok))


def said(tok: Tokenizer, text: str = "It rains.") -> tuple[int, ...]:
    return (*tok.encode(text), end_of(tok))


def steps_of(engine: ScriptedEngine, tok: Tokenizer, settings: Settings = FREE, **body: Any) -> list[Step]:
    return asyncio.run(_steps(TurnRunner(engine, body.pop("format", KimiK25()), tok, settings), body))


async def _steps(runner: TurnRunner, body: dict[str, Any]) -> list[Step]:
    turn = runner.prepare(turn_request({"messages": USER, **body}))
    return [step async for step in runner.steps(turn)]


def message_of(steps: list[Step]) -> Message:
    return fold(event for step in steps for event in step.events)


def guards_of(steps: list[Step]) -> list[str]:
    return [guard for step in steps for guard in step.guards]


def kinds_of(steps: list[Step]) -> list[str]:
    return [defect.kind for defect in message_of(steps).defects]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (99,)])
def test_the_answer_goes_on_behind_its_reasoning(
    engine: ScriptedEngine, tok: Tokenizer, closed: bool, sizes: tuple[int, ...]
) -> None:
    engine.scripts, engine.sizes = [silent(tok, closed=closed), said(tok)], sizes
    steps = steps_of(engine, tok, max_tokens=50)
    close = tok.control["</think>"]
    assert [token for step in steps for token in step.ids] == [*tok.encode("Hm."), close, *said(tok)]
    assert message_of(steps) == Message("It rains.", "Hm.")
    assert guards_of(steps) == ["silent"] and steps[-1].finish == "stop"
    assert sum(step.inserted for step in steps) == (not closed)
    first, second = engine.seen
    assert second.prompt == (*first.prompt, *tok.encode("Hm."), close)
    assert second.max_tokens == 50 - len(tok.encode("Hm.")) - 1
    assert (second.min_tokens, second.stop_token_ids) == (1, (end_of(tok),))
    assert (second.sampling, second.stop) == (first.sampling, first.stop) and engine.running == 0


@pytest.mark.parametrize("answer", ["", " \n", "\u200b", "\u2060\ufeff\u00ad"])
def test_white_space_and_what_has_no_width_say_nothing(engine: ScriptedEngine, tok: Tokenizer, answer: str) -> None:
    engine.scripts = [ids_of(Message(answer, "Hm."), tok), said(tok)]
    steps = steps_of(engine, tok)
    assert guards_of(steps) == ["silent"] and message_of(steps).content == f"{answer}It rains."
    assert not is_visible(answer) and is_visible(f"{answer}.")


@pytest.mark.parametrize("first", [Message("x", ""), Message("", "", (Call("functions.ping:0", "ping", "{}"),))])
def test_an_answer_that_says_something_is_not_continued(engine: ScriptedEngine, tok: Tokenizer, first: Message) -> None:
    engine.ids = ids_of(first, tok)
    steps = steps_of(engine, tok, tools=[PING])
    assert len(engine.seen) == 1 and not guards_of(steps)


def test_one_continuation_and_then_a_defect(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.scripts = [silent(tok, closed=False), (*tok.encode("\n"), end_of(tok)), said(tok)]
    steps = steps_of(engine, tok)
    assert len(engine.seen) == 2
    assert (kinds_of(steps), guards_of(steps), steps[-1].finish) == (["silent_turn"], ["silent"], "stop")


def test_an_answer_with_a_place_for_a_picture_is_not_continued(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (*tok.encode("Hm."), tok.control["<|media_pad|>"], tok.control["</think>"], end_of(tok))
    steps = steps_of(engine, tok)
    assert len(engine.seen) == 1 and not guards_of(steps) and "silent_turn" in kinds_of(steps)


def test_without_room_there_is_only_the_defect(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = silent(tok, closed=True)
    steps = steps_of(engine, tok, max_tokens=len(engine.ids))
    assert guards_of(steps) == ["silent"]  # there is room for one token in place of the end
    engine.ids = silent(tok, closed=False)
    steps = steps_of(engine, tok, max_tokens=len(engine.ids))  # which is that of the end of reasoning
    assert (kinds_of(steps), guards_of(steps)) == (["silent_turn"], [])


def test_an_answer_that_was_cut_off_is_no_silent_turn(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = silent(tok, closed=False)
    steps = steps_of(engine, tok, max_tokens=len(engine.ids) - 1)
    assert (steps[-1].finish, kinds_of(steps), len(engine.seen)) == ("length", [], 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["Hm"]},
        {"stop": ["."]},
        {"stop_token_ids": [256]},
        {"dovetail": {"silent": True}},
        {"min_tokens": 1},
        {"add_generation_prompt": False},
    ],
)
def test_what_the_client_ends_itself_is_not_continued(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any]
) -> None:
    ids = silent(tok, closed=False)
    engine.ids = (*ids[:-1], 256, ids[-1]) if "stop_token_ids" in fields else ids
    steps = steps_of(engine, tok, **fields)
    assert (len(engine.seen), guards_of(steps), kinds_of(steps)) == (1, [], [])


def test_the_model_s_own_end_stays_its_own_as_a_stop_token(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.scripts = [silent(tok, closed=True), said(tok)]
    assert guards_of(steps_of(engine, tok, stop_token_ids=[end_of(tok)])) == ["silent"]


def test_an_operator_may_allow_silence_and_a_request_forbid_it(engine: ScriptedEngine, tok: Tokenizer) -> None:
    allows = msgspec.structs.replace(FREE, allow_silent=True)
    for fields, count in (({}, 1), ({"dovetail": {"silent": False}}, 2)):
        engine.scripts, engine.seen = [silent(tok, closed=True), said(tok)], []
        steps_of(engine, tok, allows, **fields)
        assert len(engine.seen) == count


@pytest.mark.parametrize(
    ("last", "speaks"),
    [
        ({"content": ""}, True),
        ({"content": " \n"}, True),
        ({"content": None, "reasoning_content": "Hm"}, True),
        ({"content": "It"}, False),
        ({"content": [{"type": "text", "text": "It"}]}, False),
        ({"content": [{"type": "text", "text": ""}]}, True),
        ({"content": "", "tool_calls": [{}]}, False),
    ],
)
def test_a_continued_message_may_have_said_something(last: dict[str, Any], speaks: bool) -> None:
    request = turn_request({"messages": USER}, messages=[*USER, {"role": "assistant", **last}])
    continues = msgspec.structs.replace(request, continue_final_message=True, add_generation_prompt=False)
    assert must_speak(continues, False) is speaks
    assert must_speak(request, False) and not must_speak(request, True)


def test_reasoning_that_the_model_opens_itself(engine: ScriptedEngine, tok: Tokenizer) -> None:
    opened = (tok.control["<think>"], *silent(tok, closed=False))
    engine.scripts = [opened, said(tok)]
    steps = steps_of(engine, tok, format=OpensReasoning())
    assert message_of(steps) == Message("It rains.", "Hm.") and engine.seen[1].prompt[-1] == tok.control["</think>"]


def test_a_call_may_follow(engine: ScriptedEngine, tok: Tokenizer) -> None:
    called = Message("", "", (Call("functions.ping:0", "ping", "{}"),))
    engine.scripts = [silent(tok, closed=True), ids_of(called, tok, thinking=False)]
    steps = steps_of(engine, tok, tools=[PING])
    assert message_of(steps) == Message("", "Hm.", called.calls) and steps[-1].finish == "tool_calls"


def test_the_constraint_goes_on_where_the_answer_does(engine: ScriptedEngine, tok: Tokenizer) -> None:
    called = Message("", "", (Call("functions.ping:0", "ping", "{}"),))
    engine.scripts = [silent(tok, closed=False), ids_of(called, tok, thinking=False)]
    steps = steps_of(engine, tok, Settings(served_model_name=MODEL), tools=[PING], thinking_budget=99)
    assert message_of(steps) == Message("", "Hm.", called.calls)
    constraint = engine.seen[1].constraint
    assert constraint is not None and not constraint.advance(tok.control["<think>"])


class Unconstrained(ScriptedEngine):
    """Takes grammars as data, as servers do, and keeps to none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.info = msgspec.structs.replace(self.info, enforces="structural_tag")

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        return super().complete(msgspec.structs.replace(completion, constraint=None))


def test_a_grammar_sent_as_data_is_that_of_the_rest(tok: Tokenizer) -> None:
    engine, plain = Unconstrained(tok), KimiK25().grammar([PING], thinking=False)
    engine.scripts = [silent(tok, closed=False), said(tok)]
    assert guards_of(steps_of(engine, tok, Settings(served_model_name=MODEL), tools=[PING])) == ["silent"]
    second = engine.seen[1]
    assert second.grammar is not None and plain is not None
    assert second.grammar.lark(tok.control) == plain.lark(tok.control) and second.min_tokens == 0


def test_without_a_place_in_the_grammar_there_is_only_the_defect(tok: Tokenizer) -> None:
    engine = Unconstrained(tok)
    engine.ids = (end_of(tok),)
    steps = steps_of(engine, tok, Settings(served_model_name=MODEL), tools=[PING], enable_thinking=False)
    assert (len(engine.seen), kinds_of(steps)) == (1, ["silent_turn"])


def test_plain_text_goes_on_without_a_grammar(tok: Tokenizer) -> None:
    engine = Unconstrained(tok)
    engine.scripts = [(end_of(tok),), said(tok)]
    steps_of(engine, tok, Settings(served_model_name=MODEL), enable_thinking=False)
    first, second = engine.seen
    assert first.grammar is not None and second.grammar is None and second.min_tokens == 1


@pytest.mark.anyio
@pytest.mark.parametrize("api", PATHS)
async def test_the_client_sees_one_answer(engine: ScriptedEngine, tok: Tokenizer, api: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "dovetail": {"return_token_ids": True}}
    body |= {"input": "hi", "store": False} if api == "responses" else {"messages": USER, "max_tokens": 99}
    answer = [*tok.encode("Hm."), tok.control["</think>"], *said(tok)]
    engine.cached = 2
    bodies = []
    async with in_process(engine, tok, FREE) as client:
        for stream in (False, True):
            engine.scripts = [silent(tok, closed=False), said(tok)]
            response = await client.post(PATHS[api], json=body | {"stream": stream})
            assert response.status_code == 200, response.text
            bodies.append(response.text)
        metrics = (await client.get("/metrics")).text
    whole, streamed = json.loads(bodies[0]), bodies[1]
    extension = (whole["choices"][0]["message"] if api == "chat" else whole)["dovetail"]
    assert extension["guards"] == ["silent"] and extension["token_ids"] == answer
    assert "defects" not in extension and '"guards":["silent"]' in streamed
    usage = whole["usage"]
    assert len(answer) in usage.values()  # new tokens, of both completions
    cached = {"chat": "prompt_tokens_details", "responses": "input_tokens_details"}.get(api)
    assert (usage[cached]["cached_tokens"] if cached else usage["cache_read_input_tokens"]) == 2
    assert f'dovetail_guards_total{{guard="silent",model="{MODEL}"}} 2.0' in metrics
    assert f'dovetail_completion_tokens_total{{model="{MODEL}"}} {2 * len(answer)}.0' in metrics
    assert "dovetail_requests_total" in metrics and "It rains." in json.dumps(whole)


@pytest.mark.anyio
async def test_chunks_add_up_to_the_whole_with_log_probabilities(engine: ScriptedEngine, tok: Tokenizer) -> None:
    body = {"model": MODEL, "messages": USER, "logprobs": True, "top_logprobs": 1, "n": 2}
    scripts = [silent(tok, closed=False), (tok.control["</think>"], *said(tok)), said(tok, "No.")]
    async with in_process(engine, tok, FREE) as client:
        engine.scripts = scripts[:]
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        engine.scripts = scripts[:]
        stream = await client.post("/v1/chat/completions", json=body | {"stream": True})
    choices = folded(event for event in events_of(stream.text) if event != "[DONE]")
    for choice, other in zip(choices, whole["choices"], strict=True):
        assert choice["logprobs"] == other["logprobs"]["content"] and choice["message"] == other["message"]
    spelled = [entry["token"] for entry in choices[0]["logprobs"]]
    assert "".join(spelled) == "Hm.</think>No.<|im_end|>"
    inserted = choices[0]["logprobs"][len(tok.encode("Hm."))]
    assert (inserted["token"], inserted["logprob"], inserted["top_logprobs"]) == ("</think>", 0.0, [])


@pytest.mark.anyio
async def test_the_record_has_the_tokens_of_both_parts(engine: ScriptedEngine, tok: Tokenizer) -> None:
    called = ids_of(Message("", "", (Call("functions.ping:0", "ping", "{}"),)), tok, thinking=False)
    body: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": [PING], "dovetail": {"record": True}}
    async with in_process(engine, tok, FREE) as client:
        engine.scripts = [silent(tok, closed=False), called, (tok.control["</think>"], *said(tok))]
        message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "functions.ping:0", "content": "pong"}
        await client.post("/v1/chat/completions", json=body | {"messages": [*USER, message, result]})
    _, second, next_turn = engine.seen
    answered = (*second.prompt, *called)
    assert next_turn.prompt[: len(answered)] == answered


def test_a_guard_of_the_engine_is_told_once(tok: Tokenizer) -> None:
    class Refusing(ScriptedEngine):
        async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
            async for batch in super().complete(completion):
                yield msgspec.structs.replace(batch, guarded=2)

    refusing = Refusing(tok)
    refusing.ids = said(tok)
    steps = steps_of(refusing, tok, enable_thinking=False)
    assert guards_of(steps) == ["silent"] and steps[0].guards and len(refusing.seen) == 1


TEXT = st.text("aé <{}\n\u200b", max_size=8)


@examples(60, fuzz=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reasoning=TEXT,
    content=TEXT,
    calls=st.booleans(),
    cut=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_a_turn_that_says_something_is_not_changed(
    small_tokenizer: Tokenizer, reasoning: str, content: str, calls: bool, cut: int, sizes: list[int]
) -> None:
    tok, engine = small_tokenizer, ScriptedEngine(small_tokenizer)
    call = Call("functions.ping:0", "ping", "{}")
    engine.ids, engine.sizes = ids_of(Message(content, reasoning, (call,) if calls else ()), tok), sizes
    fields = {"tools": [PING], "max_tokens": max(1, len(engine.ids) - cut)}
    guarded = steps_of(engine, tok, **fields)
    seen = len(engine.seen)
    left_alone = steps_of(engine, tok, dovetail={"silent": True, "loops": "off"}, **fields)
    says = calls or is_visible(content)
    if says or cut:
        assert guarded == left_alone and seen == 1
    else:
        assert (seen, guards_of(guarded)) == (2, ["silent"])


WORDS = "and so on, "


def loops_of(
    engine: ScriptedEngine, tok: Tokenizer, loops: str, *, in_reasoning: bool = False, **fields: Any
) -> list[Step]:
    close = () if in_reasoning else (tok.control["</think>"],)
    engine.scripts = [(*close, *tok.encode(WORDS * 100 + "so."), end_of(tok)), said(tok)]
    return steps_of(engine, tok, FREE, dovetail={"loops": loops}, **fields)


@pytest.mark.parametrize("sizes", [(1,), (7, 40), (4000,)])
def test_a_loop_is_reported(engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...]) -> None:
    engine.sizes = sizes
    steps = loops_of(engine, tok, "report")
    period = len(tok.encode(WORDS))
    (defect,) = message_of(steps).defects
    assert (defect.kind, defect.detail) == ("loop", f"a period of {period} tokens, 100 times")
    assert (steps[-1].finish, guards_of(steps), len(engine.seen)) == ("stop", [], 1)
    assert not engine.seen[0].ends_loops
    assert message_of(loops_of(engine, tok, "off")).defects == ()


@pytest.mark.parametrize("sizes", [(1,), (7, 40), (4000,)])
@pytest.mark.parametrize("loops", ["stop", "break"])
def test_a_loop_outside_of_reasoning_ends_the_answer(
    engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...], loops: str
) -> None:
    engine.sizes = sizes
    steps = loops_of(engine, tok, loops)
    ids = [token for step in steps for token in step.ids]
    assert len(ids) == 288 and ids == [tok.control["</think>"], *tok.encode(WORDS * 100)][:288]
    assert (steps[-1].finish, kinds_of(steps), guards_of(steps)) == ("length", ["loop"], ["loop"])
    period = len(tok.encode(WORDS))
    assert message_of(steps).defects[0].detail == f"a period of {period} tokens, {287 // period} times"
    assert len(engine.seen) == len(engine.freed) == 1


@pytest.mark.parametrize("sizes", [(1,), (7, 40), (4000,)])
def test_a_loop_in_reasoning_is_broken(engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...]) -> None:
    engine.sizes = sizes
    steps = loops_of(engine, tok, "break", in_reasoning=True)
    message = message_of(steps)
    assert message.content == "It rains." and (WORDS * 100).startswith(message.reasoning)
    period = len(tok.encode(WORDS))
    details = [(defect.kind, defect.detail) for defect in message.defects]
    assert details == [("loop", f"a period of {period} tokens, {256 // period} times")]
    assert (steps[-1].finish, guards_of(steps), sum(step.inserted for step in steps)) == ("stop", ["loop"], 1)
    first, second = engine.seen
    assert first.ends_loops and second.ends_loops
    assert second.prompt[-1] == tok.control["</think>"] and engine.freed == [first.request_id, second.request_id]
    assert len(second.prompt) - len(first.prompt) + second.max_tokens == first.max_tokens


def test_a_second_loop_ends_the_answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (*tok.encode(WORDS * 100), end_of(tok))
    steps = steps_of(engine, tok, FREE, dovetail={"loops": "break"})
    assert (len(engine.seen), steps[-1].finish) == (2, "length")
    assert (kinds_of(steps), guards_of(steps)) == (["loop", "loop"], ["loop"])


def test_a_loop_in_reasoning_without_room_ends_the_answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    steps = loops_of(engine, tok, "break", in_reasoning=True, max_tokens=257)
    assert (steps[-1].finish, kinds_of(steps)) == ("length", ["loop"])


def test_loops_that_the_client_asks_for_go_on(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = tok.encode(WORDS * 100)
    steps = steps_of(engine, tok, FREE, dovetail={"loops": "stop"}, ignore_eos=True, max_tokens=len(engine.ids))
    assert sum(len(step.ids) for step in steps) == len(engine.ids) and kinds_of(steps) == ["loop"]


@pytest.mark.anyio
async def test_an_operator_sets_what_becomes_of_loops(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (tok.control["</think>"], *tok.encode(WORDS * 100), end_of(tok))
    stops = msgspec.structs.replace(FREE, loops="stop")
    async with in_process(engine, tok, stops) as client:
        ended, whole, refused = [
            await client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, "dovetail": extension})
            for extension in ({}, {"loops": "report"}, {"loops": "end"})
        ]
        metrics = (await client.get("/metrics")).text
    assert [each.json()["choices"][0]["finish_reason"] for each in (ended, whole)] == ["length", "stop"]
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dovetail.loops"
    assert f'dovetail_defects_total{{kind="loop",model="{MODEL}"}} 2.0' in metrics
    assert f'dovetail_guards_total{{guard="loop",model="{MODEL}"}} 1.0' in metrics
