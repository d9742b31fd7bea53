"""Text and token ids side by side: the text is read, and the ids say which parts of it are control tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Message
from dovetail.plugins.vllm.stream import Stream
from dovetail.tokens import Detokenizer, Tokenizer
from tests.reading import families
from tests.reading.families import cut

NAME = "kimi_k25"
END = "<|tool_call_end|>"


def stream(tokenizer: Tokenizer | None) -> Stream:
    return Stream(families.format_of(NAME).reader(tokenizer=tokenizer, thinking=False), tokenizer)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(segment.text for segment in (*detokenizer.feed(ids), *detokenizer.finish()))


@given(st.data(), families.cuts, families.cuts)
def test_text_may_come_as_late_as_it_likes(data: st.DataObject, of_ids: list[int], of_text: list[int]) -> None:
    """Ids come first, in any groups, and their text in any pieces behind them."""
    tokenizer = families.tokenizer_of(NAME)
    ids = data.draw(families.id_outputs(NAME))
    text = text_of(tokenizer, ids)
    whole = stream(tokenizer)
    expected = dovetail.fold([*whole.feed(text, ids), *whole.finish("stop")])
    read = stream(tokenizer)
    pieces = cut(text, of_text)
    events = [event for group in cut(ids, of_ids) for event in read.feed("", group)]
    events += [event for piece in pieces for event in read.feed(piece, ())]
    assert dovetail.fold(events + read.finish("stop")) == expected


def read_all(text: str, ids: Sequence[int], tokenizer: Tokenizer | None) -> Message:
    read = stream(tokenizer)
    return dovetail.fold([*read.feed(text, ids), *read.finish("stop")])


def test_text_that_spells_a_control_token_is_text_by_its_ids() -> None:
    tokenizer = families.tokenizer_of(NAME)
    ids = [*tokenizer.encode(f"say {END} "), tokenizer.control[END], *tokenizer.encode("!")]
    assert read_all(f"say {END} {END}!", ids, tokenizer).content == f"say {END} {END}!"
    assert read_all(f"say {END} {END}!", ids, None).content == f"say {END} {END}!"


def test_text_that_ends_early_is_all_there_is() -> None:
    tokenizer = families.tokenizer_of(NAME)
    ids = [*tokenizer.encode("half a "), tokenizer.control[END], *tokenizer.encode("word")]
    assert read_all("half", ids, tokenizer).content == "half"
    assert read_all("half a " + END[:5], ids, tokenizer).content == "half a " + END[:5]


def test_where_text_and_ids_do_not_go_together_text_is_read() -> None:
    tokenizer = families.tokenizer_of(NAME)
    ids = [*tokenizer.encode("other"), tokenizer.control[END]]
    assert read_all(f"one{END} two", ids, tokenizer).content == f"one{END} two"
    assert read_all(f"no ids{END}", (), tokenizer).content == "no ids"
