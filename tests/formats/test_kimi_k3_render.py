"""Laws 7 and 10 for kimi_k3: its prompts equal the fixtures, and the template where that agrees with them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import InvalidRequest, RenderError
from dovetail.tokens import Prompt, Tokenizer
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user

FMT = dovetail.format("kimi_k3")
OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def body(prompt: Prompt) -> str:
    """A prompt with its tags as XML."""
    return prompt.text.replace(SEP, ">").replace(OPEN, "<").replace(CLOSE, "</").replace(END, "\n")


def rendered(*messages: dict[str, Any], **options: Any) -> str:
    return body(FMT.render([*messages], add_generation_prompt=False, thinking_effort=None, **options))


# -- fixtures ---------------------------------------------------------------------------------------------------------


def test_every_fixture_with_an_input_is_equal(shared_data: Path) -> None:
    inputs = sorted((shared_data / "render/kimi_k3").glob("*_input.json"))
    assert len(inputs) == 5
    for path in inputs:
        case = json.loads(path.read_text())
        options = {name: case[name] for name in FMT.template_options if name in case}
        prompt = FMT.render(
            case["messages"],
            case.get("tools"),
            add_generation_prompt=case["add_generation_prompt"],
            **case["template_kwargs"],
            **options,
        )
        expected = path.with_name(path.name.replace("_input.json", "_output.txt")).read_text()
        assert prompt.text == expected, path.name


#: The inputs of the fixtures that contain outputs only, reconstructed from these outputs.
SEGMENTED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("goldens").joinpath("kimi_k3_segmented_inputs.json").read_text()
)


def test_a_result_with_another_id_has_the_name_of_the_call_in_its_place() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    answered = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "2", "content": "noon"}
    assert rendered(user("hi"), answered, result) == rendered(user("hi"), answered, {**result, "name": "now"})


def test_every_fixture_in_segments_is_equal_in_text_and_ids(shared_data: Path, kimi_tokenizer: Tokenizer) -> None:
    """Each segment of a fixture is encoded separately. Their encoder writes no effort unless it is requested."""
    cases = json.loads((shared_data / "render/kimi_k3/smg_k3_render_fixtures.json").read_text())
    assert cases.keys() == SEGMENTED.keys()
    for name, case in cases.items():
        inputs = SEGMENTED[name]
        prompt = FMT.render(inputs["messages"], inputs["tools"], **{"thinking_effort": None, **inputs["options"]})
        assert prompt.text == case["text"], name
        expected = [(segment["text"], segment["allow_special"]) for segment in case["segments"]]
        assert encoded(zip_pieces(prompt), kimi_tokenizer) == encoded(expected, kimi_tokenizer), name


def zip_pieces(prompt: Prompt) -> list[tuple[str, bool]]:
    return [(piece, i % 2 == 1) for i, piece in enumerate(prompt.pieces) if piece]


def encoded(segments: list[tuple[str, bool]], tokenizer: Tokenizer) -> list[int | str]:
    """The ids of each text, and the literals of control tokens, which this vocabulary lacks."""
    ids: list[int | str] = []
    for text, control in segments:
        ids += [text] if control else tokenizer.encode(text)
    return ids


@given(st.text(st.sampled_from('"&$_-.= aB1\n東'), min_size=1, max_size=6))
def test_the_value_of_an_attribute_is_encoded_on_its_own(kimi_tokenizer: Tokenizer, value: str) -> None:
    """Otherwise a token could contain a piece of the value and of the quotes around it."""
    escaped = value.replace("&", "&amp;").replace('"', "&quot;")
    expected: list[int] = []
    for piece in ("message", " role", '="', "user", '"', " name", '="', escaped, '"'):
        expected += kimi_tokenizer.encode(piece)
    prompt = FMT.render([{**user("x"), "name": value}], thinking_effort=None)
    opening = prompt.pieces[: prompt.pieces.index(SEP)]
    assert encoded([(piece, False) for piece in opening[::2] if piece], kimi_tokenizer) == expected
    assert opening[1::2] == [OPEN, "", ""]


# -- the template -----------------------------------------------------------------------------------------------------

IMAGES = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}, {"type": "text", "text": "this"}]
MORE_SHAPES = {
    **SHAPES,
    "names": ([{**user(), "name": 'a"&<b'}, {**assistant(), "name": "bo"}, {**system(), "name": "cy"}], None),
    "images": ([user(IMAGES), assistant(IMAGES)], None),
    "results in another order": (
        [user(), calling("get_weather", "now"), result(1, "12:00", "stale"), result(0), user()],
        TOOLS,
    ),
    "results under one id": ([user(), calling("get_weather", "now"), result(0, "a"), result(0, "b")], TOOLS),
    "a result of another turn": ([user(), calling("now"), result(9, "?", "gone"), result(0)], TOOLS),
    "results in two runs": ([user(), calling("get_weather", "now"), result(0), user(), result(1)], TOOLS),
    "results without names": (
        [user(), calling("get_weather", "now"), *({"role": "tool", "tool_call_id": "?", "content": "x"},) * 2],
        TOOLS,
    ),
    "later tools": ([user(), {"role": "system", "content": "dropped", "tools": TOOLS}, user()], None),
    "other name of reasoning": ([assistant(reasoning="a"), assistant(reasoning_content="", reasoning="b")], None),
    "values of every type": (
        [
            calling(
                "f",
                arguments={"s": "x", "e": "", "i": 1, "f": -0.5, "t": True, "n": None, "l": [1, {}], "o": {"k": "é"}},
            )
        ],
        None,
    ),
    "names to be escaped": ([calling('a&b"c<', arguments={'k"&': '<v>&"'})], None),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"thinking_effort": "high", "tool_choice": "auto"},
    {"thinking_effort": None, "tool_choice": "required"},
    {"tool_choice": "none", "response_format": {"type": "json_object"}},
    {"tool_choice": {"type": "function", "function": {"name": "now"}}, "response_format": {"type": "text"}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"b": 1, "a": {"d": 1, "c": []}}},
        }
    },
    {"response_format": {"type": "json_schema", "json_schema": {"json_schema": {"é": 1}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}},
)


@pytest.mark.slow
def test_every_shape_equals_the_template(shared_data: Path) -> None:
    """Two points follow the fixtures and not the template, which writes arguments in JSON text as one block and has
    another name for an image's token."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (shared_data / "templates/llama.cpp/Kimi-K3.jinja").read_text()
    for shape, (messages, tools) in MORE_SHAPES.items():
        parsed = copy.deepcopy(messages)
        for function in (call["function"] for message in parsed for call in message.get("tool_calls", ())):
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"])
        for options in OPTIONS:
            for thinking in (True, False):
                for open_turn in (True, False):
                    [expected], _ = render_jinja_template(
                        [parsed],
                        tools=tools,
                        chat_template=template,
                        add_generation_prompt=open_turn,
                        thinking=thinking,
                        **options,
                    )
                    prompt = FMT.render(messages, tools, thinking=thinking, add_generation_prompt=open_turn, **options)
                    expected = expected.replace("<|kimi_image_placeholder|>", "<|media_pad|>")
                    assert prompt.text == expected, (shape, options)


# -- cases that the fixtures and the template lack --------------------------------------------------------------------


def test_values_of_arguments_stay_as_they_are_written() -> None:
    """Values in JSON text keep their spelling; the values of an object are serialised."""
    written = '{ "exp": 1E400 , "long":12345678901234567890.50,"list":[1,2],\n"s":"a\\nb","twice":1,"twice":2}'
    shown = rendered(calling("f", arguments=written))
    arguments = shown.partition('index="1">')[2].partition("</call>")[0].split("</argument>")
    assert arguments == [
        '<argument key="exp" type="number">1E400',
        '<argument key="long" type="number">12345678901234567890.50',
        '<argument key="list" type="array">[1,2]',
        '<argument key="s" type="string">a\nb',
        '<argument key="twice" type="number">1',
        '<argument key="twice" type="number">2',
        "",
    ]
    assert '<argument key="list" type="array">[1, 2]</argument>' in rendered(calling("f", arguments={"list": [1, 2]}))


@pytest.mark.parametrize("arguments", ["{", "null", "[1,2]", "words", "   ", '{"a":1} then more', "[" * 100_000])
def test_arguments_that_are_not_an_object_are_one_block(arguments: str) -> None:
    """As in Moonshot's encoder."""
    assert f'<call tool="f" index="1"><json type="object">{arguments}</json></call>' in rendered(
        calling("f", arguments=arguments)
    )


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_empty_arguments_add_nothing(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    assert '<tools><call tool="f" index="1"></call></tools>' in rendered(assistant(tool_calls=[call]))


def test_reasoning_of_white_space_is_kept() -> None:
    assert "<think> \n</think>" in rendered(assistant(reasoning_content=" \n"))


def test_a_developer_message_is_a_system_message() -> None:
    """The encoder has no such role; in the fixtures, a developer message declares tools like a system message."""
    assert rendered({"role": "developer", "content": "x"}) == '<message role="system">x</message>\n'


def test_a_result_without_a_tool_name_is_refused() -> None:
    with pytest.raises(RenderError, match=r"messages\[1\]") as caught:
        FMT.render([user(), {"role": "tool", "tool_call_id": "c", "content": "x"}])
    assert caught.value.param == "messages[1].tool_call_id"


def test_whether_reasoning_is_left_open() -> None:
    hostile = "<|open|>think<|sep|>"
    assert FMT.left_open(FMT.render([user(hostile)]))
    assert not FMT.left_open(FMT.render([user(hostile)], thinking=False))
    assert not FMT.left_open(FMT.render([user(hostile)], add_generation_prompt=False))
    assert not FMT.left_open(Prompt([]))
    go_on = {"add_generation_prompt": False, "continue_final_message": True}
    assert FMT.left_open(FMT.render([assistant("", reasoning_content="I")], **go_on))
    assert not FMT.left_open(FMT.render([assistant("I", reasoning_content="Hm.")], **go_on))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("thinking_effort", value) for value in ("medium", "", 1, ["low"], {})),
        *(("tool_choice", value) for value in ("any", 1, ["auto"])),
        *(
            ("response_format", value)
            for value in (
                "json",
                "json_schema",
                1,
                [],
                {},
                {"type": "xml"},
                {"type": "json_schema"},
                {"type": "json_schema", "json_schema": 1},
                {"type": "json_schema", "json_schema": {"schema": 1}},
                {"type": "json_schema", "json_schema": {"schema": {"a": "\ud800"}}},
                {"type": "json_schema", "json_schema": {"schema": {"a": {1, 2}}}},
            )
        ),
    ],
)
def test_values_of_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=option) as caught:
        FMT.render([user()], **{option: value})
    assert caught.value.param == f"chat_template_kwargs.{option}"


@pytest.mark.parametrize(
    ("option", "value"), [("tool_choice", "required"), ("response_format", {"type": "json_object"})]
)
def test_options_that_add_a_last_message_exclude_continue_final_message(option: str, value: Any) -> None:
    go_on = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(InvalidRequest, match="continue_final_message") as caught:
        FMT.render([user(), assistant("I")], **{option: value}, **go_on)
    assert caught.value.param == f"chat_template_kwargs.{option}"
    plain = FMT.render([user(), assistant("I")], **go_on)
    assert FMT.render([user(), assistant("I")], tool_choice="auto", response_format=None, **go_on) == plain


def test_results_between_users_are_named_by_their_calls() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}} for i in "abc"]
    messages = [assistant(None, tool_calls=calls)]
    for i in "cab":
        messages += [user(), {"role": "tool", "tool_call_id": i, "content": "x"}]
    text = rendered(*messages)
    tags = [f'role="tool" tool="f{i}" index="{number}"' for number, i in enumerate("cab", start=1)]
    assert [text.count(tag) for tag in tags] == [1, 1, 1]


def test_a_wrong_type_of_a_tool_name_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        FMT.render([user(), {"role": "tool", "tool_call_id": "c", "tool": 5, "content": "x"}])
    assert caught.value.param == "messages[1].tool"
