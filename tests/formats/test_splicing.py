"""Answers by their own tokens in prompts of any template: found by marks, replaced whole, or left to be rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.errors import RenderError
from dovetail.formats.base import Format
from dovetail.formats.prompts.answer_frames import Frames
from dovetail.formats.prompts.splicing import Incomplete, Spelling, Splice
from dovetail.tokens import Prompt, TokenSpan
from tests.formats import chat_templates, conversations
from tests.formats.conversations import assistant, result, user

#: A template in the layout of Qwen3: reasoning only after the last user's message, calls as JSON.
CHATML = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- (m.content or '') | trim }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + call.function.arguments + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "</s>")
OPENING = ["", "<|im_start|>", "assistant\n"]


def calling(name: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return conversations.calling(name, arguments=arguments, **more)


def formed(source: str = CHATML, controls: tuple[str, ...] = CONTROLS) -> Format:
    return chat_templates.of_source(source, controls)


def frames(fmt: Format, **options: Any) -> Frames:
    def render(messages: Any, opens: bool) -> Prompt:
        return fmt.render(messages, None, add_generation_prompt=opens, **options)

    return Frames(render, fmt.history_rules)


def spelling(*pieces: str, **changes: Any) -> Spelling:
    """An answer whose texts have ids of their own."""
    spelled = [TokenSpan(piece, (7,)) if piece and i % 2 == 0 else piece for i, piece in enumerate(pieces)]
    values = {"opening": OPENING, "ended": True, "open": "content", "reasoned": False, **changes}
    return Spelling(spelled, **values)


def spliced(
    fmt: Format, messages: Sequence[Any], answers: dict[int, Spelling], *, continues: bool = False, opens: bool = True
) -> list[str]:
    splice = Splice(messages, answers, fmt.history_rules.reasoning_field)
    opens = opens and not continues
    prompt = fmt.render(splice.messages, None, add_generation_prompt=opens, continue_final_message=continues)
    return splice.spliced(prompt, frames(fmt), continues=continues).pieces


START = ["", "<|im_start|>", "user\nWhat is the weather?", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
AFTER = ["<|im_end|>", "\n", "<|im_start|>", "user\nWhat is the weather?", "<|im_end|>", "\n", *OPENING[1:]]


def test_an_answer_takes_the_place_of_its_message() -> None:
    answer = spelling(" Sun ny. ")
    pieces = spliced(formed(), [user(), assistant("Sunny."), user()], {1: answer})
    assert pieces == [*START, "", " Sun ny. ", *AFTER]
    assert isinstance(pieces[len(START) + 1], TokenSpan)


def test_calls_and_reasoning_keep_their_spelling() -> None:
    written = ["", "<think>", "Hm", "</think>", "\n", "<tool_call>", 'now{ "a":1}', "</tool_call>", ""]
    messages = [user(), calling("now", arguments='{"a": 1}', reasoning_content="Hm"), result()]
    pieces = spliced(formed(), messages, {1: spelling(*written, open="markup", reasoned=True)})
    assert pieces[: len(START) + len(written) - 1] == [*START[:-1], "assistant\n", *written[1:]]
    assert pieces[len(START) + len(written) - 1 :][:2] == ["<|im_end|>", "\n"]
    # The client has left the reasoning out.
    without = [user(), calling("now", arguments='{"a": 1}'), result()]
    assert spliced(formed(), without, {1: spelling(*written, open="markup", reasoned=True)}) == pieces


def test_several_answers() -> None:
    messages = [user(), calling("now"), result(), calling("now", first=1), result(1), assistant(), user()]
    answers = {1: spelling("one", open="markup"), 3: spelling("two", open="markup"), 5: spelling("three")}
    text = "".join(spliced(formed(), messages, answers))
    expected = formed().render(messages, None).text
    for call, name in (
        ("<tool_call>now{}</tool_call>", "one"),
        ("<tool_call>now{}</tool_call>", "two"),
        ("Sunny.", "three"),
    ):
        expected = expected.replace(call, name, 1)
    assert text == expected


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (assistant("b", reasoning_content="r"), spelling("", "<think>", "r", "</think>", "b", reasoned=True)),
        (assistant("b"), spelling("b", opening=[""])),
        (assistant("b"), spelling("b", opening=["", "<|im_start|>", "model\n"])),
        (assistant(""), spelling("")),
        (assistant("b"), spelling("b", ended=False, open="markup")),
        (calling("now"), spelling("b", ended=False, open="content")),
    ],
    ids=["reasoning before the user", "no opening", "another opening", "no text", "cut in markup", "cut in a call"],
)
def test_an_answer_that_cannot_be_replaced(message: dict[str, Any], answer: Spelling) -> None:
    follows = [result(), user()] if message.get("tool_calls") else [user()]
    with pytest.raises(Incomplete, match=r"\[1\]") as incomplete:
        spliced(formed(), [user(), message, *follows], {1: answer})
    assert incomplete.value.messages == [1]


def test_the_end_of_an_answer_that_was_cut_off_is_the_templates() -> None:
    pieces = spliced(formed(), [user(), assistant("Sun"), user()], {1: spelling("Su n", ended=False)})
    assert pieces == [*START, "", "Su n", *AFTER]
    thinking = spelling("", "<think>", "H m", ended=False, open="reasoning", reasoned=True)
    pieces = spliced(formed(), [user(), assistant("", reasoning_content="Hm")], {1: thinking}, opens=False)
    assert pieces == [*START, "<think>", "H m", "</think>", "", "<|im_end|>", "\n"]


def test_an_answer_is_continued_from_its_own_tokens() -> None:
    messages = [user(), assistant("Sun")]
    for ended in (False, True):
        assert spliced(formed(), messages, {1: spelling("Su n", ended=ended)}, continues=True) == [*START, "", "Su n"]
    with pytest.raises(Incomplete):
        spliced(formed(), messages, {1: spelling("Su n", open="markup")}, continues=True)


def test_parts_of_content_are_marked_as_parts() -> None:
    source = CHATML.replace("(m.content or '')", "m.content | map(attribute='text') | join")
    fmt = formed(source)
    assert fmt.history_rules.parts == "parts"
    parts = [{"type": "text", "text": "Sun"}, {"type": "text", "text": "ny."}]
    question = [{"type": "text", "text": "What is the weather?"}]
    messages = [user(question), assistant(parts), user(question)]
    assert spliced(fmt, messages, {1: spelling("Sun ny.")}) == [*START, "", "Sun ny.", *AFTER]


# -- other layouts ----------------------------------------------------------------------------------------------------

#: No generation prompt, and the next message begins where an answer ends.
BRACKETS = """\
{%- for m in messages %}{% if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
{%- else %}{{- m.content + '</s>' }}{% endif %}{% endfor %}"""
#: Roles end the turn before them, as in GLM's.
ROLES = """\
{%- for m in messages %}{{- '<|' + m.role + '|>\\n' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""


#: A role begins a call inside an answer as well, as in GigaChat 3's.
MESSAGES = """\
{{- 'tools<|role|>' }}
{%- for m in messages %}{{- m.role + '<|role|>' + m.content + '<|sep|>' }}
{%- for call in m.tool_calls or [] %}{{- 'call<|role|>' + call.function.name + call.function.arguments + '<|sep|>' }}
{%- endfor %}{% endfor %}
{%- if add_generation_prompt %}{{- 'assistant<|role|>' }}{% endif %}"""


def test_what_opens_an_answer_may_stand_inside_it_too() -> None:
    fmt = formed(MESSAGES, ("<|role|>", "<|sep|>", "</s>"))
    opening = frames(fmt).opening("user")
    assert opening == ["", "<|role|>", ""]
    written = spelling("", "<|sep|>", "call", "<|role|>", "now{ }", "<|sep|>", "", opening=opening, open="markup")
    messages = [user("a"), calling("now"), result()]
    text = "".join(spliced(fmt, messages, {1: written}))
    assert text == fmt.render(messages, None).text.replace("now{}", "now{ }")
    # Without a message before it, nothing tells which of them opens the answer.
    assert frames(fmt).of(calling("now"), opening, None, "tool", reasoned=False) is None


def test_without_a_generation_prompt_the_last_control_token_opens_an_answer() -> None:
    fmt = formed(BRACKETS, ("[INST]", "[/INST]", "</s>"))
    opening = frames(fmt).opening("user")
    assert opening == ["", "[/INST]", ""]
    pieces = spliced(fmt, [user("a"), assistant("b"), user("c")], {1: spelling("B", opening=opening)})
    assert pieces == ["", "[INST]", "a", "[/INST]", "B", "</s>", "", "[INST]", "c", "[/INST]"]


def test_a_turn_that_the_next_role_ends() -> None:
    fmt = formed(ROLES, ("<|user|>", "<|assistant|>", "</s>"))
    opening = frames(fmt).opening("user")
    assert opening == ["", "<|assistant|>", "\n"]
    pieces = spliced(fmt, [user("a"), assistant("b"), user("c")], {1: spelling("B", opening=opening)})
    assert "".join(pieces) == "<|user|>\na<|assistant|>\nB<|user|>\nc<|assistant|>\n"
    # The answer's own end of a call is not written twice.
    written = spelling("B", "</s>", "", opening=opening)
    fmt = formed(
        ROLES.replace("m.content }}", "m.content + ('</s>\\n' if m.role == 'assistant' else '') }}"),
        ("<|user|>", "<|assistant|>", "</s>"),
    )
    pieces = spliced(fmt, [user("a"), assistant("b"), user("c")], {1: written})
    assert "".join(pieces) == "<|user|>\na<|assistant|>\nB</s>\n<|user|>\nc<|assistant|>\n"


@pytest.mark.parametrize(
    ("source", "controls"),
    [
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}assistant: ", ()),
        (CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>' + 'x' * 90"), CONTROLS),
        ("{% for m in messages %}{{ '<|im_start|>' + m.content }}{% endfor %}", CONTROLS),
        ("{{ raise_exception('never') if messages | length < 3 }}" + CHATML, CONTROLS),
    ],
    ids=["no control token", "a long text", "the user's text", "refused"],
)
def test_a_generation_prompt_that_tells_nothing(source: str, controls: tuple[str, ...]) -> None:
    assert frames(formed(source, controls)).opening("user") == []


def test_generation_prompts_after_each_role() -> None:
    for role in ("user", "tool", "system", "developer", "assistant", None):
        assert frames(formed()).opening(role) == OPENING


@pytest.mark.parametrize("before", [None, "system", "user", "assistant", "tool"])
@pytest.mark.parametrize("after", [None, "user", "assistant", "system"])
def test_frames_between_any_roles(before: str | None, after: str | None) -> None:
    frame = frames(formed()).of(assistant("b"), OPENING, before, after, reasoned=False)
    assert frame is not None
    assert (frame.before, frame.start, frame.after) == (OPENING, (2, 10), ["", "<|im_end|>", "\n"])


def test_frames_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    fmt = formed()

    def render(messages: Any, opens: bool) -> Prompt:
        rendered.append(len(messages))
        if len(rendered) >= 9:
            raise RenderError("no more")
        return fmt.render(messages, None, add_generation_prompt=opens)

    known = Frames(render, fmt.history_rules)
    first = known.of(assistant("b"), OPENING, "user", "user", reasoned=False)
    assert known.of(assistant("other words"), OPENING, "user", "user", reasoned=False) is first is not None
    assert rendered == [2, 3]
    for message in (calling("now"), calling("now", first=1), calling("then"), calling("then")):
        known.of(message, OPENING, "user", "tool", reasoned=False)
    assert len(rendered) == 8  # three more frames of two prompts each: the last two calls are the same
    monkeypatch.setattr("dovetail.formats.prompts.answer_frames._MOST_FRAMES", 1)
    assert known.of(assistant(None), OPENING, "user", "user", reasoned=False) is None


@pytest.mark.parametrize(
    "source",
    [
        CHATML + "{{- '<|im_start|>assistant\\n' }}",
        CHATML.replace("{{- (m.content or '') | trim }}", "{{- (m.content or '') | trim if loop.last else 'x' }}"),
    ],
    ids=["always opens an answer", "shows the last message only"],
)
def test_an_answer_without_a_frame(source: str) -> None:
    assert frames(formed(source)).of(assistant("b"), OPENING, "user", "user", reasoned=False) is None


def test_a_template_that_writes_something_else_around_this_answer() -> None:
    """Where the frame, from a small conversation, is not what the prompt has."""
    source = CHATML.replace("{{- '<|im_end|>\\n' }}", "{{- '<|im_end|>\\n' if messages | length < 5 else '</s>' }}")
    messages = [user(), assistant("b"), user(), assistant("c"), user()]
    with pytest.raises(Incomplete) as incomplete:
        spliced(formed(source), messages, {1: spelling("B"), 3: spelling("C")})
    assert incomplete.value.messages == [1, 3]


def test_marks_are_never_the_clients() -> None:
    """A client that repeats a mark of an earlier request repeats nothing of this one."""
    splice = Splice([user(), assistant("b")], {1: spelling("B")}, "reasoning_content")
    mark = splice.messages[1]["content"]
    pieces = spliced(formed(), [user(mark), assistant("b"), user(mark)], {1: spelling("B")})
    assert pieces[2] == f"user\n{mark}"


def test_arguments_that_are_an_object_are_marked_as_an_object() -> None:
    fmt = formed(CHATML.replace("call.function.arguments", "call.function.arguments.items() | list | tojson"))
    assert fmt.history_rules.arguments == "object"
    messages = [user(), conversations.calling("now", arguments={"a": 1}), result(), user()]
    assert "<tool_call>now[[" in fmt.render(messages, None).text
    pieces = spliced(fmt, messages, {1: spelling("n ow", open="markup")})
    assert pieces[: len(START) + 3] == [*START, "", "n ow", "<|im_end|>"]
