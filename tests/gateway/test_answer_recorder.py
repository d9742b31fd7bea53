"""`PreparedTurn.record`: the tokens of an answer, and digests of the message that the client was sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.events import Call, Message, fold
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.records.record import Record, Sealer, digests_of_answer, model_digest
from dovetail.tokens import Tokenizer
from tests.examples import examples
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, prepared
from tests.gateway.test_one_code_path import CALLS, TOOLS, run

SETTINGS = Settings(served_model_name=MODEL)


def recorded(tok: Tokenizer, ids: tuple[int, ...], **body: Any) -> Record:
    turn = prepared(tok, settings=SETTINGS, tools=TOOLS, **body)
    return Sealer(SETTINGS.record_key, model_digest("kimi_k25", tok), tok.vocab_size).open(turn.record(0, ids))


def test_a_whole_answer(tok: Tokenizer) -> None:
    answer = Message("Wörds. ", "Thinking…", CALLS)
    ids = ids_of(answer, tok)
    record = recorded(tok, ids)
    assert (record.ids, record.ended, record.open) == (ids[:-1], True, "markup")
    assert (record.message, record.reasoning) == digests_of_answer(answer)


def test_tokens_after_the_end_of_the_turn_do_not_count(tok: Tokenizer) -> None:
    ids = ids_of(Message("Words."), tok)
    assert recorded(tok, (*ids, 5, 6)) == recorded(tok, ids)


@pytest.mark.parametrize(("cut", "left_open"), [(3, "reasoning"), (-2, "content")])
def test_an_answer_that_was_cut_off(tok: Tokenizer, cut: int, left_open: str) -> None:
    ids = ids_of(Message("Many words.", "Thinking about it"), tok)[:cut]
    record = recorded(tok, ids)
    assert (record.ids, record.ended, record.open) == (ids, False, left_open)
    reader = KimiK25().reader(TOOLS, tokenizer=tok)
    assert (record.message, record.reasoning) == digests_of_answer(
        fold([*reader.feed("", ids), *reader.finish("length")])
    )


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_record_is_of_the_message_that_the_client_gets(data: st.DataObject, small_tokenizer: Tokenizer) -> None:
    """For any tokens and stop strings. A record may be missing after a stop string only."""
    tok = small_tokenizer
    ids = list(ids_of(Message("Wörds. ", "Thinking…", (Call("functions.f:0", "f", '{"a": "é🌦"}'),)), tok))
    for at in data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=3), label="wrong tokens at"):
        ids[at] = data.draw(st.integers(0, tok.vocab_size - 1), label="token")
    stop = data.draw(st.lists(st.sampled_from(["ör", "k", "🌦", "in", "g…", "_end|>"]), max_size=2), label="stop")
    engine = ScriptedEngine(tok)
    engine.ids = tuple(ids)
    engine.sizes = (1000,)
    turn, steps = run(engine, tok, stop)
    answer = fold(event for step in steps for event in step.events)
    text = turn.record(0, [token for step in steps for token in step.ids])
    if not text:
        assert steps[-1].stop_string is not None
        return
    record = turn.recorder._sealer.open(text)
    assert (record.message, record.reasoning) == digests_of_answer(answer)
    # What the tokens say is that message too.
    if steps[-1].stop_string is None:
        assert record.ids == tuple(ids[: len(record.ids)])
    reader = turn.language.reader(tok)
    again = fold([*reader.feed("", record.ids), *reader.finish("stop" if record.ended else "length")])
    assert (record.message, record.reasoning) == digests_of_answer(again)
