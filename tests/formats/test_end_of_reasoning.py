"""`Format.end_of_reasoning`: behind it, an answer goes on like one without reasoning."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.events import Message, fold
from dovetail.tokens import raw_prompt
from tests.formats import chat_templates
from tests.reading import families

THOUGHT, ANSWER = "Let me see.", "It rains."


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("name", families.NAMES)
def test_a_thought_its_end_and_a_plain_answer_are_one_answer(name: str, controls: bool) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name, with_controls=controls)
    end, plain = fmt.end_of_reasoning(tokenizer), fmt.write(Message(ANSWER), thinking=False)
    whole = fmt.write(Message(ANSWER, THOUGHT))
    begin, thought, _ = whole.text.partition(THOUGHT)
    assert bool(end) == bool(thought)
    if end:
        begun, goes_on = (
            raw_prompt(text, tokenizer, prefix=False, controls=True).ids(tokenizer)
            for text in (begin + thought, plain.text)
        )
        ids = [*begun, *end, *goes_on]
        assert tokenizer.decode(ids) == whole.text
        reader = fmt.reader(thinking=fmt.reasoning == "opened", tokenizer=tokenizer)
        read = fold([*reader.feed("", ids), *reader.finish()])
        assert (read.reasoning, read.content, read.defects) == (THOUGHT, ANSWER, ())


@pytest.mark.proof
@pytest.mark.slow
def test_so_it_is_in_the_formats_of_published_templates(shared_data: Path) -> None:
    for path in chat_templates.paths(shared_data):
        fmt = chat_templates.of(path)
        _, thought, rest = fmt.write(Message(ANSWER, THOUGHT)).text.partition(THOUGHT)
        assert not thought or rest.endswith(fmt.write(Message(ANSWER), thinking=False).text), path
