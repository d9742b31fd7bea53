"""What every format does unless it says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats.base import parameters_by_name
from dovetail.formats.registry import FAMILIES
from dovetail.tokens import Prompt, Segment
from tests.reading import families

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.renders()])
def test_a_format_without_a_renderer_says_so(name: str) -> None:
    with pytest.raises(RenderError, match=name):
        dovetail.format(name).render(MESSAGES)


@pytest.mark.parametrize("name", FAMILIES)
def test_empty_content_is_repaired(name: str) -> None:
    messages, repairs = dovetail.format(name).repair(MESSAGES)
    assert [message["content"] for message in messages] == ["hi", ""]
    assert [repair.kind for repair in repairs] == ["empty_content"]


@pytest.mark.parametrize("tools", [None, 3, ["x"], [{"function": None}], [{"function": {"name": 3}}]], ids=str)
def test_tools_of_a_wrong_shape_have_no_parameters(tools: Any) -> None:
    assert parameters_by_name(tools) == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_unknown_template_option_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no template option 'colour'"):
        dovetail.format(name).render(MESSAGES, colour="red")


def test_a_template_option_of_the_family_s_own_reaches_its_renderer() -> None:
    class Coloured(type(dovetail.format("kimi_k2"))):  # type: ignore[misc]
        template_options = ("colour",)

        def _render(self, messages: Any, tools: Any, thinking: bool, open_turn: bool, **options: Any) -> Prompt:
            return Prompt([Segment(options["colour"], False)])

    assert Coloured().render(MESSAGES, colour="red").text == "red"


def test_any_exception_of_a_renderer_is_a_render_error() -> None:
    class Tripping(type(dovetail.format("kimi_k2"))):  # type: ignore[misc]
        def _render(self, *arguments: Any, **options: Any) -> Prompt:
            raise ValueError("no such thing")

    with pytest.raises(RenderError, match="kimi_k2 cannot write this conversation: no such thing"):
        Tripping().render(MESSAGES)


def test_the_markers_of_reasoning() -> None:
    marked = {name: markers for name in FAMILIES if (markers := dovetail.format(name).reasoning_markers)}
    assert marked["kimi_k3"] == ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    assert (marked["qwen3"], marked["mistral"]) == (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
    assert marked.keys().isdisjoint({"hermes", "harmony", "pythonic"})  # it has none, or it is a channel
    closable = {name: markers for name in FAMILIES if (markers := dovetail.format(name).closable_markers)}
    assert closable == {name: markers for name, markers in marked.items() if name != "kimi_k3"}


def test_a_template_gets_nothing_that_its_model_s_own_code_does_not_give_it() -> None:
    assert dovetail.format("hermes").template_variables([]) == {}


QUESTION = {"role": "user", "content": "What is <think>?"}
RENDERING = [name for name in families.RENDERING if name not in ("harmony", "kimi_k3")]


@pytest.mark.parametrize("name", RENDERING)
@pytest.mark.parametrize("thinking", (True, False))
def test_text_about_a_tag_opens_no_reasoning(name: str, thinking: bool) -> None:
    fmt = dovetail.format(name)
    for asked in (QUESTION, {"role": "user", "content": "hi"}):
        prompt = fmt.render([asked], thinking=thinking)
        assert fmt.left_open(prompt) is (thinking and fmt.reasoning == "opened")
    answer = {"role": "assistant", "content": "The tag <think> is", "reasoning_content": "Hm."}
    continued = fmt.render(
        [QUESTION, answer], thinking=thinking, add_generation_prompt=False, continue_final_message=True
    )
    assert not fmt.left_open(continued)
    if name == "deepseek_v31":
        assert not fmt.left_open(fmt.render([QUESTION], thinking=thinking, add_generation_prompt=False))
