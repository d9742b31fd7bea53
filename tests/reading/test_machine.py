"""The alphabet under every reader, and shared behaviour of readers beyond the laws."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import CallEnd, Content, Message
from dovetail.formats.registry import FAMILIES
from dovetail.reading.alphabet import Alphabet, Literals
from dovetail.reading.reader import Reader, ReaderOptions, Script
from dovetail.tokens import Segment
from tests.reading import families


def test_no_literal_begins_another() -> None:
    with pytest.raises(ValueError, match="'<a' is the beginning of another"):
        Literals(("<a", "<ab"), controls=False)


def test_an_alphabet_without_control_tokens_is_plain_text() -> None:
    alphabet = Alphabet(())
    assert alphabet.from_text("a <b> 漢") == "a <b> 漢"
    assert alphabet.end() == ""


def test_control_tokens_beyond_the_alphabet_are_spelled() -> None:
    alphabet = Alphabet(("<a>",))
    literals = [f"<{number}>" for number in range(3000)]
    characters = [alphabet.from_segments([Segment(literal, True)]) for literal in literals]
    assert [alphabet.spell(character) for character in characters] == literals
    assert len(set(characters)) == 3000


@pytest.mark.parametrize("name", FAMILIES)
def test_segments_read_as_the_ids_of_a_prompt_do(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    prompt = fmt.write(families.SAMPLE, thinking=False)
    reader = fmt.reader(families.TOOLS, thinking=False)
    message = dovetail.fold([*reader.feed_segments(prompt.segments), *reader.finish()])
    assert message.content == families.SAMPLE.content
    assert len(message.calls) == len(families.SAMPLE.calls)
    assert message == dovetail.fold(families.stream_ids(name, [prompt.ids(tokenizer)], tokenizer, thinking=False))


@pytest.mark.parametrize("reason", ["length", "abort", "error"])
def test_only_a_turn_that_ended_is_whole(reason: str) -> None:
    """Behind a parameter that is closed a call may be over, or another parameter to come."""
    text = "<tool_call>\n<function=ping>\n<parameter=a>\nb\n</parameter>\n"
    fmt = dovetail.format("qwen3_coder")
    assert [type(event) for event in fmt.reader(thinking=False).feed(text)][-1] is not CallEnd
    for given, whole in ((reason, False), ("stop", True), ("tool_calls", True)):
        reader = fmt.reader(thinking=False)
        events = [*reader.feed(text), *reader.finish(given)]
        assert any(isinstance(event, CallEnd) for event in events) is whole


def test_ids_that_are_made_up_cost_no_more_each() -> None:
    """Where the model's own ids have run ahead of ours, counted in look-ups of those given out."""

    class Counting(set[str]):
        lookups = 0

        def __contains__(self, item: object) -> bool:
            self.lookups += 1
            return super().__contains__(item)

    def call(own: str) -> str:
        return f'<tool_call>\n{{{own}"name": "f", "arguments": {{}}}}\n</tool_call>\n'

    calls = 500
    reader = dovetail.format("hermes").reader()
    reader._ids = taken = Counting()  # type: ignore[attr-defined]  # a CallReader
    text = "".join(call(f'"id": "call_{calls + i}", ') for i in range(calls)) + call("") * calls
    message = dovetail.fold([*reader.feed(text), *reader.finish()])
    assert len({c.id for c in message.calls}) == 2 * calls
    assert taken.lookups <= 5 * 2 * calls


def test_a_reader_without_markers_drops_no_beginning_of_one() -> None:
    class Plain(Reader):
        controls = ()

        def _read(self) -> Script[None]:
            yield from self._prose(Content)

    reader = Plain(ReaderOptions(thinking=False))
    assert dovetail.fold([*reader.feed("a </thi"), *reader.finish("length")]) == Message("a </thi")
