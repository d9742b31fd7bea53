"""Outputs as the models' makers and other engines publish them, in the families whose calls are JSON."""

from __future__ import annotations

import json

import pytest

from dovetail.events import Message
from dovetail.formats.registry import FAMILIES
from tests.reading import whole
from tests.reading.families import format_of
from tests.reading.whole import calls, kinds

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
PLAIN = f'{{"name": "get_weather", "arguments": {PARIS}}}'
OTHER = f'{{"name": "get_weather", "arguments": {ROME}}}'
NUMBERED = f'{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {PARIS}}}'
ONE, TWO = [("get_weather", PARIS)], [("get_weather", PARIS), ("get_weather", ROME)]


@pytest.mark.parametrize(
    ("name", "output", "reasoning", "content", "expected"),
    [
        ("granite", f"<|tool_call|>[{PLAIN}, {OTHER}]<|end_of_text|>", "", "", TWO),
        ("granite", f"<|tool_call|>[\n    {PLAIN},\n    {OTHER}\n]<|end_of_text|>", "", "", TWO),
        ("granite", f"Hi.\n<tool_call>\n{PLAIN}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>", "", "Hi.", TWO),
        ("granite", "<think>Hm.</think><response>Hi.</response><|end_of_text|>", "Hm.", "Hi.", []),
        ("granite", "<response>Hi.</response> so", "", "Hi.</response> so", []),
        ("granite", "Hi.</response>", "", "Hi.</response>", []),
        (
            *(
                "command_a",
                f"<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>\n[\n    {NUMBERED}\n]\n<|END_ACTION|>",
            ),
            *("Hm.", "", ONE),
        ),
        (
            *("command_a", "<|START_THINKING|>Hm.<|END_THINKING|>\n<|START_RESPONSE|>Hi.<|END_RESPONSE|>"),
            *("Hm.", "Hi.", []),
        ),
        ("command_4", "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>", "Hm.", "Hi.", []),
        ("command_4", f"<|START_ACTION|>[\n    {NUMBERED}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>", "", "", ONE),
        ("hunyuan", f"<think>\nHm.\n</think>\n<answer>\n<tool_calls>[{PLAIN}]</tool_calls>\n</answer>", "Hm.", "", ONE),
        ("hunyuan", f"<think>\n\n</think>\n<answer><tool_calls>[{PLAIN}, {OTHER}]</tool_calls></answer>", "", "", TWO),
        ("hunyuan", "<think>\nHm.\n</think>\n<answer>\nHi.\n</answer><|eos|>", "Hm.", "Hi.", []),
        ("hunyuan", "<think>\nHm.\n</think>\n<answer>\n助手：Hi.\n</answer><|eos|>", "Hm.", "Hi.", []),
        ("hunyuan", f"<think>\nHm.\n</think>\n\n<tool_calls>[{PLAIN}]</tool_calls>", "Hm.", "", ONE),
        ("hunyuan", "<think>\nHm.\n</think>\n\nHi.", "Hm.", "\nHi.", []),
        ("hunyuan", "A line:\n<answer>\nHi.\n</answer>\n", "", "A line:\n<answer>\nHi.\n</answer>\n", []),
        ("hunyuan", f"Hi.<tool_calls>[{PLAIN}]</tool_calls><|eos|>", "", "Hi.", ONE),
        ("hunyuan", "<think>\nI may call <tool_calls>.\n</think>\nHi.", "I may call <tool_calls>.", "Hi.", []),
        ("ernie45", f"<think>\nHm.\n</think>\n\n\n<tool_call>\n{PLAIN}\n</tool_call>\n", "Hm.", "", ONE),
        (
            *("ernie45", f"<tool_call>\n{PLAIN}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>\n<|im_end|>"),
            *("", "", TWO),
        ),
        ("ernie45", "<think>\nHm.\n</think>\n\n<response>\nHi.\n</response>\n<|im_end|>", "Hm.", "Hi.", []),
        ("internlm", f"Hi.<|action_start|><|plugin|>\n{PLAIN}<|action_end|><|im_end|>", "", "Hi.", ONE),
        (
            *("internlm", f"<|action_start|><|plugin|>\n{PLAIN.replace('arguments', 'parameters')}<|action_end|>"),
            *("", "", ONE),
        ),
        ("xlam", f"[{PLAIN}, {OTHER}]", "", "", TWO),
        ("xlam", f"[\n  {PLAIN},\n  {OTHER}\n]<|im_end|>", "", "", TWO),
        ("xlam", PLAIN, "", "", ONE),
        ("xlam", f"<tool_call>[{PLAIN}]</tool_call>", "", "", ONE),
        ("xlam", f"Sure.<tool_call>[{PLAIN}]</tool_call>", "", "Sure.", ONE),
        ("xlam", "[1, 2]", "", "[1, 2]", []),
        ("xlam", "[[1], [2]]", "", "[[1], [2]]", []),
        ("xlam", '[ {"a": 1}]', "", '[ {"a": 1}]', []),
        ("xlam", '[{"name": "Ann"}, {"name": "Bob"}]', "", '[{"name": "Ann"}, {"name": "Bob"}]', []),
        ("xlam", f"As in [{PLAIN}].", "", f"As in [{PLAIN}].", []),
        ("phi4_mini", f"functools[{PLAIN}, {OTHER}]<|end|>", "", "", TWO),
        ("phi4_mini", f"functools[\n  {PLAIN},\n  {OTHER}\n]", "", "", TWO),
        ("phi4_mini", f"Hi.\nfunctools[{PLAIN}]\nBye.", "", "Hi.\n\nBye.", ONE),
        ("phi4_mini", f"<|tool_call|>[{PLAIN}]<|/tool_call|><|end|>", "", "", ONE),
        ("phi4_mini", f"{PLAIN},{OTHER}<|end|>", "", "", TWO),
        ("phi4_mini", "import functools\n", "", "import functools\n", []),
        ("jamba", f"Hi.<tool_calls>[\n    {PLAIN},\n    {OTHER}\n]</tool_calls><|eom|>", "", "Hi.", TWO),
    ],
)
def test_published_outputs(name: str, output: str, reasoning: str, content: str, expected: object) -> None:
    message = whole.read(name, output, thinking=False)
    assert (message.reasoning, message.content, calls(message), kinds(message)) == (reasoning, content, expected, [])


def test_a_prompt_that_opens_reasoning() -> None:
    message = whole.read("ernie45", "Hm.\n</think>\n\n<response>\nHi.\n</response>\n", thinking=True)
    assert message == Message("Hi.", "Hm.")


def test_numbers_are_ids() -> None:
    message = whole.read("command_a", f"<|START_ACTION|>[{NUMBERED}]<|END_ACTION|>")
    assert [call.id for call in message.calls] == ["0"]


@pytest.mark.parametrize("name", ["granite", "hunyuan"])
def test_an_answer_may_be_wrapped(name: str) -> None:
    """The grammar allows it with calls, and what follows the wrapper's end is text."""
    reader = FAMILIES[name].reader_type
    text = f"x{reader.wrapper_end}y{reader.wrapper_end}"
    message = whole.read(name, reader.wrapper + text, thinking=False)
    assert message.content == f"x{reader.wrapper_end}y"
    assert format_of(name).reader_type is reader


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("hunyuan", f"<tool_calls>[{PLAIN}]</tool_calls>"),
        ("named_in_text", f"<function=get_weather>{PARIS}</function>"),
    ],
)
def test_text_opens_calls_at_the_start_of_a_response_format(name: str, call: str) -> None:
    for before in ("", "\n\n"):
        message = whole.read(name, before + call, thinking=False, structured=True)
        assert (calls(message), message.content, kinds(message)) == (ONE, "", [])
        content = before + json.dumps({"a": call})
        assert whole.read(name, content, thinking=False, structured=True) == Message(content)


def test_an_answer_ends_once() -> None:
    text = "<|START_RESPONSE|>Hello.<|END_RESPONSE|><|END_RESPONSE|>"
    message = whole.read("command_a", text, thinking=False)
    assert (message.content, kinds(message)) == ("Hello.", ["stray_marker"])
