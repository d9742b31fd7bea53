"""Formats that are declared by templates, and who may begin with reasoning."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.reading.json_calls import JsonCallReader
from tests.reading import families

CALL = '{"id": "0", "tool": "ping", "input": {}}'


@pytest.mark.parametrize(
    ("output", "content", "calls", "defects"),
    [
        (f"<|calls|>[{CALL}]<|end|>", "", 1, ["missing_section_end"]),
        (f"<|calls|>[{CALL}, {CALL}]<|/calls|><|end|>", "", 2, ["duplicate_id"]),
        ("<|think|>Hm. <|answer|>Hi.<|/answer|><|end|>", "Hi.", 0, ["reasoning_not_closed"]),
        ("Before. <|answer|>Hi.<|/answer|> After.<|end|>", "Before. Hi. After.", 0, []),
    ],
)
def test_the_example_of_the_docs(output: str, content: str, calls: int, defects: list[str]) -> None:
    message = families.format_of(families.EXAMPLE).parse(output, families.TOOLS)
    assert (message.content, len(message.calls)) == (content, calls)
    assert [defect.kind for defect in message.defects] == defects


def test_a_key_belongs_to_its_family() -> None:
    reader = families.format_of(families.EXAMPLE)._reader
    assert issubclass(reader, JsonCallReader) and reader.keys.name[0] == "tool"
    message = dovetail.format("hermes").parse(f"<tool_call>\n{CALL}\n</tool_call>", families.TOOLS)
    assert not message.calls


@pytest.mark.parametrize(
    ("name", "left_open", "thinking", "continues", "may"),
    [
        ("qwen3", False, True, False, True),
        ("qwen3", False, True, True, False),
        ("qwen3", False, False, False, False),
        ("kimi_k25", True, True, True, True),
        ("kimi_k25", False, True, False, False),
        ("hermes", True, True, False, False),
    ],
)
def test_whether_an_answer_may_begin_with_reasoning(
    name: str, left_open: bool, thinking: bool, continues: bool, may: bool
) -> None:
    assert dovetail.format(name).may_reason(left_open, thinking=thinking, continues=continues) is may
