"""What a recording has of each step: refused drafts, who refused them, what the grammar allowed, log probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import EngineError
from dovetail.events import Call, Message
from dovetail.gateway.observe import capture
from dovetail.gateway.observe.grammar_replay import GrammarReplay, MaskBudget
from dovetail.gateway.observe.recording import Recording
from dovetail.gateway.observe.redaction import redacted
from dovetail.gateway.records.record import model_digest
from dovetail.grammar.guard import Guarded
from dovetail.grammar.matcher import Matcher
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, prepared
from tests.gateway.test_recordings import CALL, TOOL, only, recorded

pytestmark = pytest.mark.anyio


async def asked(engine: ScriptedEngine, tok: Tokenizer, folder: Path, **fields: Any) -> Recording:
    """The recording of one chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "temperature": 0.5, **fields}
    async with recorded(engine, tok, folder) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    return only(folder)


def matcher(tok: Tokenizer, **fields: Any) -> Guarded:
    constraint = prepared(tok, tools=[TOOL], **fields).constraint
    assert isinstance(constraint, Guarded)
    return constraint


def allowed_naively(tok: Tokenizer, before: tuple[int, ...], **fields: Any) -> int:
    """How many tokens the mask of a new matcher has after `before`; every one of them can follow."""
    at = matcher(tok, **fields)
    assert all(at.advance(token) for token in before)
    row = bytearray(-(-tok.vocab_size // 32) * 4)
    at.fill(memoryview(row))
    allowed = [token for token in range(tok.vocab_size) if row[token // 8] >> token % 8 & 1]
    for token in allowed:
        assert at.advance(token)
        at.rollback(1)
    return len(allowed)


async def test_what_the_grammar_allows_equals_a_naive_count(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(CALL, tok)
    engine.sizes = (2, 1, 3)
    it = await asked(engine, tok, tmp_path, tools=[TOOL])
    counts = [count for step in it.steps for count in step.allowed or ()]
    assert counts == [allowed_naively(tok, engine.ids[:place]) for place in range(len(engine.ids))]
    assert 1 in counts and max(count or 0 for count in counts) > 100


async def test_a_budget_of_reasoning_is_part_of_what_is_allowed(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    """After two tokens of reasoning, only its end may come."""
    engine.ids = (*tok.encode("hm")[:2], *ids_of(Message(content="ok", reasoning="x"), tok)[1:])
    reasoned = engine.ids.index(tok.control["</think>"])
    it = await asked(engine, tok, tmp_path, tools=[TOOL], dovetail={"reasoning_budget": reasoned})
    counts = [count for step in it.steps for count in step.allowed or ()]
    assert it.grammar is not None and "look_up" in it.grammar
    assert counts[reasoned] == 1 and all((count or 0) > 1 for count in counts[:reasoned])


async def test_without_a_grammar_there_is_nothing_to_allow(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    async with recorded(engine, tok, tmp_path) as client:
        await client.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
    it = only(tmp_path)
    assert it.grammar is None and {step.allowed for step in it.steps} == {None}
    assert {step.refused for step in it.steps} == {None}
    assert {step.logprobs for step in it.steps} == {None}


@pytest.mark.parametrize("first", ["x", "<|im_user|>"])
async def test_refused_drafts_say_who_refused_them(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, first: str
) -> None:
    """The grammar allows no control token inside reasoning, and a letter there; the oracle is a matcher of its own."""
    engine.ids = ids_of(CALL, tok)
    letter, marker = tok.encode("x")[0], tok.control["<|im_user|>"]
    engine.refused = (letter, marker) if first == "x" else (marker, letter)
    it = await asked(engine, tok, tmp_path, tools=[TOOL])
    at, refused_by = matcher(tok), []
    for token in engine.ids:
        refused = not at.advance(engine.refused[0])
        at.rollback(not refused)
        refused_by.append("grammar" if refused else "model")
        at.advance(token)
    assert [step.refused_by for step in it.steps] == refused_by
    assert refused_by[0] == ("model" if first == "x" else "grammar") and "grammar" in refused_by
    for step in it.steps:
        assert step.refused is not None and tuple(token.id for token in step.refused) == engine.refused
        assert {(token.text, token.control) for token in step.refused} == {("x", False), ("<|im_user|>", True)}


async def test_drafts_after_the_end_of_the_turn_were_not_judged() -> None:
    step = capture.Step(0, [], (5, 6), 3, 2, "stop", drafts=(5, 6, 7))
    assert capture._refused_by(step, (7,), None) == "end"
    assert capture._refused_by(step, (), None) is None


async def test_log_probabilities_are_recorded_and_texts_of_all_that_are_redacted(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    engine.refused = tuple(tok.encode("xyz"))
    it = await asked(engine, tok, tmp_path, logprobs=True, top_logprobs=2)
    entries = [entry for step in it.steps for entry in step.logprobs or ()]
    assert [entry.logprob for entry in entries] == [-token / 64 for token in engine.ids]
    assert all(len(entry.top) == 2 for entry in entries)
    without = redacted(it)
    assert [entry.top for step in without.steps for entry in step.logprobs or ()] == [()] * len(entries)
    assert all(token.id is None and not token.text for step in without.steps for token in step.refused or ())


async def test_a_recording_names_its_tokenizer_and_format(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    it = await asked(engine, tok, tmp_path)
    assert it.tokenizer is not None and it.tokenizer.vocab_size == tok.vocab_size
    assert it.tokenizer.digest == model_digest("", tok).hex() and it.format == "kimi_k25"


def test_the_replay_shares_no_state_with_running_sequences(tok: Tokenizer) -> None:
    """An error in one copy is an error in all that share their compiled state (see `Guarded`)."""
    running = matcher(tok)
    first, second = running.apart(), running.apart()
    assert first._speaking._compiled is second._speaking._compiled is not running._speaking._compiled
    assert running.another()._speaking._compiled is running._speaking._compiled
    for token in ids_of(CALL, tok):
        assert first.advance(token)
    assert second.advance(ids_of(CALL, tok)[0]) and running.advance(ids_of(CALL, tok)[0])


async def test_masks_beyond_the_budget_are_left_out(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_MOST_MASKS", 3)
    engine.ids = ids_of(CALL, tok)
    it = await asked(engine, tok, tmp_path, tools=[TOOL])
    counts = [count for step in it.steps for count in step.allowed or ()]
    assert None not in counts[:3] and set(counts[3:]) == {None} and len(counts) == len(engine.ids)
    assert it.left_out == ("what the grammar allowed at later tokens",)
    assert not MaskBudget(5, -1.0).take()


class Gives_up(Matcher):
    """Its library gives up when it advances by `at`."""

    at = 0

    def advance(self, token: int) -> bool:
        if token == self.at:
            raise EngineError("no")
        return super().advance(token)


def test_after_a_token_that_the_grammar_refuses_nothing_is_known(tok: Tokenizer) -> None:
    ids = ids_of(Message(reasoning="hm", calls=(Call("functions.look_up:0", "look_up", '{"word": "ok"}'),)), tok)
    marker = tok.control["<|im_user|>"]

    def replay(constraint: Guarded | Matcher) -> GrammarReplay:
        return GrammarReplay(constraint, tok.vocab_size, MaskBudget(1000, 60.0))

    refusing = replay(matcher(tok))
    first = refusing.step((ids[0], marker), 0, ())
    assert first.counts[0] and first.counts[1] and first.refuses is None
    assert refusing.step(ids[1:2], 0, (marker,)) == ((None,), None)
    assert replay(matcher(tok)).step((ids[0],), 1, (ids[0], marker)).refuses is True  # cut before its last row
    assert replay(matcher(tok)).step((ids[0],), 1, (ids[0], ids[1])).refuses is False
    assert replay(matcher(tok)).step((ids[0],), 0, (-1,)).refuses is True
    assert replay(matcher(tok)).step((ids[0],), 0, (tok.vocab_size,)).refuses is True

    class Uncompiled(Matcher):
        def apart(self) -> Matcher:
            raise ValueError("no")

    assert replay(Uncompiled(matcher(tok)._speaking._compiled)).step(ids[:2], 0, (5,)) == ((None, None), None)

    class Broken(Gives_up):
        def apart(self) -> Matcher:
            return self

        at = ids[1]

    broken = replay(Broken(matcher(tok)._speaking._compiled))
    assert broken.step(ids[:3], 0, ()).counts[2] is None
    assert broken.step(ids[3:4], 0, (5,)).refuses is None
