"""`continue_final_message`: a prompt that ends with the text of its last message, for every family."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.formats.derived.template import Template, pattern
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.formats.prompts import continuing
from dovetail.formats.prompts.history import HistoryRules
from dovetail.tokens import Prompt
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user
from tests.reading.families import RENDERING

BEFORE = [system(), user(), calling("get_weather"), result()]
CLOSED = {"add_generation_prompt": False}
CONTINUE = {"continue_final_message": True, **CLOSED}
texts = st.text(st.sampled_from("Sun\n\t  é<|>🙂"), max_size=8) | st.sampled_from(("<think>", "</think>", "<|im_end|>"))


@pytest.mark.parametrize("name", RENDERING)
@given(content=texts, thinking=st.booleans())
def test_the_prompt_is_the_closed_prompt_up_to_the_text(name: str, content: str, thinking: bool) -> None:
    fmt = dovetail.format(name)
    thinking = thinking and bool(content)  # without content, the reasoning would be continued
    messages = [*BEFORE, assistant(content, **({"reasoning_content": "Hm."} if thinking else {}))]
    open_, closed = (fmt.render(messages, TOOLS, thinking=thinking, **how) for how in (CONTINUE, CLOSED))
    assert open_.text.endswith(content)
    assert closed.text.startswith(open_.text)
    assert set(closed.text[len(open_.text) :]) - set(" \n\t"), "the model writes the end of the turn"
    # The control tokens are the same, too.
    *whole, last = open_.pieces or [""]
    assert closed.pieces[: len(whole)] == whole
    assert closed.pieces[len(whole)].startswith(last)


@pytest.mark.parametrize("name", RENDERING)
@pytest.mark.parametrize("content", ("Sunny", "", " \n", "a \n", [{"type": "text", "text": "a "}], None, []))
def test_content_in_parts_and_empty_content(name: str, content: Any) -> None:
    fmt = dovetail.format(name)
    text = content[0]["text"] if isinstance(content, list) and content else content or ""
    prompt = fmt.render([user(), assistant(content)], thinking=False, **CONTINUE)
    assert prompt.text.endswith(text)
    assert prompt == fmt.render([user(), assistant(text)], thinking=False, **CONTINUE)
    more = fmt.render([user(), assistant(text + "MORE")], thinking=False, **CONTINUE)
    assert more.text == prompt.text + "MORE"


@pytest.mark.parametrize("name", RENDERING)
def test_the_last_part_is_continued(name: str) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert dovetail.format(name).render([user(), assistant(parts)], thinking=False, **CONTINUE).text.endswith("two")


@pytest.mark.parametrize("name", RENDERING)
def test_reasoning_is_continued_if_the_family_shows_it(name: str) -> None:
    fmt = dovetail.format(name)
    try:
        prompt = fmt.render([user(), assistant(None, reasoning_content="I think")], **CONTINUE)
    except RenderError as error:
        assert error.param == "continue_final_message"
    else:
        assert prompt.text.endswith("I think")
        assert fmt.left_open(prompt)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        (5, "messages"),
        ([assistant(), user()], "messages[1]"),
        (["words"], "messages[0]"),
        ([calling("now")], "messages[0].tool_calls"),
        ([assistant([{"type": "image"}])], "messages[0].content"),
        ([assistant(["words"])], "messages[0].content"),
        ([assistant({"text": "x"})], "messages[0].content"),
        ([assistant("", reasoning_content=5)], "messages[0].reasoning_content"),
    ],
)
def test_messages_that_cannot_be_continued_are_refused(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        dovetail.format("kimi_k25").render(messages, **CONTINUE)
    assert caught.value.param == param


def test_add_generation_prompt_excludes_continue_final_message() -> None:
    with pytest.raises(InvalidRequest, match="add_generation_prompt") as caught:
        dovetail.format("kimi_k25").render([assistant()], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_whitespace_stays_unless_the_template_trims_it() -> None:
    _, mark, rest = continuing.marked([assistant("a \n")], "reasoning_content")
    assert continuing.cut(Prompt.alternating([f"x a{mark} \nb"]), mark, rest).text == "x a \n"
    assert continuing.cut(Prompt.alternating([f"x a{mark}", "<end>"]), mark, rest).text == "x a"
    with pytest.raises(RenderError, match="does not show"):
        continuing.cut(Prompt.alternating(["x a \n"]), mark, rest)


@pytest.mark.slow
def test_continued_prompts_equal_those_of_transformers(shared_data: Path) -> None:
    """Transformers searches the prompt for the text, so the texts here occur once and in no template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    shapes = [messages for messages, _ in SHAPES.values()][::3]  # a third of them, to save time
    conversations = [[*copy.deepcopy(messages), assistant("Sunny in Zürich.")] for messages in shapes]
    conversations += [[user(), assistant(" In Zürich \n")], [user(), assistant([{"type": "text", "text": "Zürich"}])]]
    controls = pattern(special.values())
    # Transformers copies reasoning to another field; here `repair` does that.
    for message in (message for messages in conversations for message in messages):
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
    compared = 0
    for path in sorted((shared_data / "templates").glob("*/*.jinja")):
        source = path.read_text(encoding="utf-8")
        template = Template(source, special)
        for messages in conversations:
            try:
                [expected], _ = render_jinja_template(
                    [messages], chat_template=source, continue_final_message=True, **special
                )
            except Exception:  # any error of the template or the library
                continue
            marked, mark, rest = continuing.marked(messages, "reasoning_content")
            with contextlib.suppress(DovetailError):
                whole = template.render(marked, None, controls=controls, add_generation_prompt=False)
                prompt = continuing.cut(whole, mark, rest)
                assert prompt.text == expected, path.name
                compared += 1
    assert compared > 700


def test_the_reasoning_field_of_a_family_is_continued() -> None:
    class Thinking(KimiK25):
        history_rules = HistoryRules(reasoning_field="thinking")

        def _render(self, messages: Any, *arguments: Any, **options: Any) -> Prompt:
            return Prompt.alternating(["", "<think>", messages[-1]["thinking"] + " and more"])

    fmt = Thinking()
    prompt = fmt.render(
        [{"role": "assistant", "content": "", "thinking": "so"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert prompt.pieces == ["", "<think>", "so"]
    assert fmt.left_open(prompt)
