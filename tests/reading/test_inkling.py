"""Inkling's answers: a message for reasoning, one for content, and one for each call."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats.families.inkling_prompt import CALL, END, END_OF_TURN, MODEL, TEXT, THINK
from tests.formats.conversations import TOOLS as SHOWN
from tests.reading.families import TOOLS, stream, tokenizer_of

JSON = '{"name":"ping","args":{}}'
PING = [("ping", "{}")]
CALLED = f"ping{CALL}{JSON}{END}"


def read(text: str, *, thinking: bool = False) -> tuple[str, str, list[tuple[str, str]], list[str]]:
    """Reasoning, content, calls and kinds of defects, in one piece and in pieces of one character."""
    message = dovetail.format("inkling").parse(text, TOOLS, thinking=thinking)
    assert dovetail.fold(stream("inkling", list(text), thinking=thinking)) == message
    calls = [(call.name, call.arguments) for call in message.calls]
    return message.reasoning, message.content, calls, [defect.kind for defect in message.defects]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls", "defects"),
    [
        ("", "", "", [], []),
        (f"{TEXT}Hi{END}{END_OF_TURN}", "", "Hi", [], []),
        (f"{THINK}Hm.{END}{MODEL}{TEXT}Hi{END}{MODEL}{CALLED}{MODEL}{CALLED}{END_OF_TURN}", "Hm.", "Hi", PING * 2, []),
        (f"{MODEL}{TEXT}Hi{END}", "", "Hi", [], ["stray_marker"]),
        (f"{CALLED}{MODEL}{THINK}So.{END}{MODEL}{TEXT}Done.{END}", "So.", "Done.", PING, []),
        (f"{CALL}{JSON}{END}", "", "", PING, []),
        (f" ping \n{CALL} {JSON} {END}", "", "", PING, []),
        (f'ping{CALL}{{"name":"ping","arguments":{{}}}}{END}', "", "", PING, []),
        (f"{TEXT}Hi{END}{END}{MODEL}{CALLED}", "", "Hi", PING, ["stray_marker"]),
        (f"{TEXT}Hi{END}{CALLED}", "", "Hi", PING, ["missing_start"]),
        (f"{TEXT}Hi{MODEL}{CALLED}", "", "Hi", PING, ["missing_message_end"]),
        (f"{TEXT}Hi\n{CALL}{JSON}{END}", "", "Hi\n", PING, ["missing_message_end"]),
        (f"{THINK}Hm{CALL}{JSON}{END}", "Hm", "", PING, ["reasoning_not_closed"]),
        (f"ping{JSON}{END}", "", "", PING, ["missing_separator"]),
        (f"pingx{CALL}{JSON}{END}", "", "", PING, ["text_in_header"]),
        (f"ping{CALL}{JSON}{END_OF_TURN}", "", "", PING, ["missing_call_end"]),
        (f"ping{TEXT}Hi{END}", "", "pingHi", [], ["text_in_header"]),
        ("Hi there", "", "Hi there", [], ["text_outside_message"]),
        (f"{TEXT}a `{END}` b, {MODEL} c{END}", "", f"a `{END}` b, {MODEL} c", [], []),
        (f"{TEXT}Hi {THINK}there{END}", "", f"Hi {THINK}there", [], []),
        (f"{THINK}`{END}{MODEL}{TEXT}`{END}{END_OF_TURN}", "`", "`", [], []),
        (f"{TEXT}`{END}{MODEL}` ends it{END}", "", f"`{END}{MODEL}` ends it", [], []),
        (f"see {CALL} for that", "", f"see {CALL} for that", [], []),
        (f"see{CALL} for that", "", f"see{CALL} for that", [], []),
    ],
)
def test_messages(text: str, reasoning: str, content: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    assert read(text) == (reasoning, content, calls, defects)


def test_a_prompt_may_leave_reasoning_open() -> None:
    assert read(f"Hm.{END}{MODEL}{CALLED}", thinking=True) == ("Hm.", "", PING, [])
    fmt = dovetail.format("inkling")
    thought = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "reasoning_content": "Hm"}]
    assert fmt.left_open(fmt.render(thought, continue_final_message=True, add_generation_prompt=False))
    assert not fmt.left_open(fmt.render(thought))
    tokenizer = tokenizer_of("inkling")
    markers = fmt.reasoning_tokens(tokenizer)
    assert markers is not None and fmt.reasoning_tags is None
    assert (
        markers.closing
        == tuple(tokenizer.control[literal] for literal in (END, MODEL))
        == fmt.end_of_reasoning(tokenizer)
    )


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "0.9"),
        ({"thinking": False}, "0"),
        ({"reasoning_effort": "low", "thinking": False}, "0.2"),
        ({"reasoning_effort": 0.999 - 0.01}, "0.99"),
        ({"reasoning_effort": 0}, "0"),
    ],
)
def test_the_effort_stands_before_the_first_message_of_the_user(options: dict[str, Any], shown: str) -> None:
    fmt, system = dovetail.format("inkling"), {"role": "developer", "content": "Be brief."}
    level = f"<|message_system|>{TEXT}Thinking effort level: {shown}{END}"
    text = fmt.render([system, {"role": "user", "content": "hi"}], SHOWN, **options).text
    assert text.startswith("<|message_system|>tool_declare<|content_xml|>[{")
    assert text.endswith(f"Be brief.{END}{level}<|message_user|>{TEXT}hi{END}{MODEL}")
    assert fmt.render([system], **options).text.endswith(f"Be brief.{END}{level}{MODEL}")


@pytest.mark.parametrize("effort", ["none at all", 1, -0.1, True, [], None])
def test_an_effort_that_there_is_not(effort: object) -> None:
    fmt, hi = dovetail.format("inkling"), [{"role": "user", "content": "hi"}]
    if effort is None:
        assert fmt.render(hi, reasoning_effort=None) == fmt.render(hi)
        return
    with pytest.raises(InvalidRequest, match=r"from 0 to 0\.99") as error:
        fmt.render(hi, reasoning_effort=effort)
    assert error.value.param == "chat_template_kwargs.reasoning_effort"


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(RenderError, match="role 'critic'"):
        dovetail.format("inkling").render([{"role": "critic", "content": "no"}])
