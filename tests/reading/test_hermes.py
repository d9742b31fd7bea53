"""`hermes` and `qwen3`: blocks of one call each, between and after text and reasoning."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import Call, CallStart, Content, Message
from tests.reading.families import TOOLS
from tests.reading.test_envelope import block
from tests.reading.whole import kinds, read

PING = '{"name": "ping", "arguments": {}}'
END = "<|im_end|>"


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (f"Look.\n{block(PING)}\n{block(PING)}{END}", 2, "Look.", []),
        (f"Look. {block(PING)} Done.", 1, "Look.  Done.", []),
        (f"{block(PING)}\n\n{block(PING)}\n{END}", 2, "", []),
        (f"{block(PING)}\n", 1, "", []),
        (f"<tool_call>{PING}<tool_call>{PING}</tool_call>", 2, "", ["missing_call_end"]),
        (f"<tool_call>{PING}{END}", 1, "", ["missing_call_end"]),
        (f"<tool_call>{PING} and\n</tool_call>so", 1, "and\nso", ["text_in_section"]),
        (f"<tool_call>{PING} , and</tool_call>", 1, ", and", ["text_in_section"]),
        (f"<tool_call>{PING},</tool_call>", 1, ",", ["text_in_section"]),
        (f"<tool_call>{PING}, [x]</tool_call>", 1, ", [x]", ["text_in_section"]),
        (f"<tool_call>{PING};{PING}</tool_call>", 2, "", ["missing_call_end"]),
        (f"<tool_call>{' ' * 40}{PING}{' ' * 40}</tool_call>", 1, "", []),
        (f"{block(PING)}{' ' * 40}so", 1, f"{' ' * 40}so", []),
        (f"<tool_call>{PING[:-1]}<tool_call>{PING}</tool_call>", 2, "", ["missing_bracket"]),
        (f"<tool_call>words <think>{block(PING)}", 1, "<tool_call>words ", ["reasoning_not_closed"]),
        (f"{PING}</tool_call>", 1, "", ["unmarked_call", "stray_marker"]),
        (f"<think>hm{block(PING)}", 1, "", ["reasoning_not_closed"]),
    ],
)
def test_blocks(text: str, calls: int, content: str, defects: list[str]) -> None:
    message = read("hermes", text)
    assert [call.name for call in message.calls] == ["ping"] * calls
    assert (message.content, kinds(message)) == (content, defects)


def test_ids_decide_what_a_marker_is(small_tokenizer: dovetail.tokens.Tokenizer) -> None:
    """A tokenizer that has no token for `<tool_call>`: the literal is the marker then, as it is without ids."""
    reader = dovetail.format("hermes").reader(TOOLS, tokenizer=small_tokenizer)
    ids = small_tokenizer.encode(block(PING))
    events = [event for token in ids for event in reader.feed("", [token])]
    assert [event.name for event in events if isinstance(event, CallStart)] == ["ping"]


def test_newlines_that_the_template_writes_are_markup() -> None:
    answer = Message("Hello.", "Let me\nthink.", (Call("call_0", "ping", "{}"),))
    written = dovetail.format("qwen3").write(answer).text
    assert written == f"<think>\nLet me\nthink.\n</think>\n\nHello.\n{block(PING)}{END}"
    assert read("qwen3", written) == answer
    assert (
        dovetail.format("qwen3")
        .write(Message(calls=answer.calls))
        .text.startswith("<think>\n\n</think>\n\n<tool_call>")
    )
    assert dovetail.format("qwen3").write(answer, thinking=False).text == written.partition("</think>\n\n")[2]


def test_hermes_reasons_only_where_it_did() -> None:
    fmt = dovetail.format("hermes")
    assert fmt.write(Message("Hello.")).text == "Hello.<|im_end|>"
    assert fmt.write(Message("Hello.", "hm")).text == "<think>hm</think>Hello.<|im_end|>"


def test_much_whitespace_behind_a_call_is_not_waited_for() -> None:
    reader = dovetail.format("hermes").reader(TOOLS)
    reader.feed(block(PING))
    assert reader.feed("\t" * 15) == []
    assert reader.feed("\t" * 2) == [Content("\t" * 16), Content("\t")]
