"""Law 7 for the K2 family: its prompts equal the models' own templates, in text and ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.errors import RenderError
from dovetail.formats.declarations import sorted_deeply
from dovetail.tokens import Tokenizer
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user

FMT = dovetail.format("kimi_k25")
FAMILY = ("kimi_k2", "kimi_k2_thinking", "kimi_k25")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer"}, "city": {"type": "string", "description": "Where"}},
            "required": ["city"],
        },
    },
}


def test_every_shared_case_is_equal_in_text_and_ids(shared_data: Path, kimi_tokenizer: Tokenizer) -> None:
    cases = json.loads((shared_data / "render/kimi_k25/cases.json").read_text())
    assert len(cases) == 324
    for case in cases:
        prompt = FMT.render(
            case["messages"],
            case["tools"],
            thinking=case["thinking"],
            add_generation_prompt=case["add_generation_prompt"],
        )
        assert prompt.text == case["expected_prompt"], case["name"]
        assert prompt.ids(kimi_tokenizer) == case["expected_token_ids"], case["name"]


def test_a_conversation_equals_the_models_own_template(shared_data: Path) -> None:
    """Shapes that the shared cases lack: names, parts, images, several turns, null and missing fields."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (shared_data / "render/kimi_k25/chat_template.jinja").read_text()
    calls = [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "functions.f:1", "type": "function", "function": {"name": "f", "arguments": {"é": [1, None, True]}}},
    ]
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "!"},
    ]
    conversations = [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "name": "ann", "content": parts}],
        [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}],
        [{"role": "developer", "content": "rules"}, {"role": "user", "content": None}],
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "why"},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "r0"},
            {"role": "tool", "tool_call_id": "functions.f:1", "content": [{"type": "text", "text": "r1"}]},
            {"role": "assistant", "content": "done", "reasoning_content": "so"},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "", "tool_calls": calls[:1], "reasoning_content": "again"},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": ""},
        ],
    ]
    for messages in conversations:
        for thinking in (True, False):
            for open_turn in (True, False):
                [expected], _ = render_jinja_template(
                    [messages], chat_template=template, add_generation_prompt=open_turn, thinking=thinking
                )
                prompt = FMT.render(messages, thinking=thinking, add_generation_prompt=open_turn)
                assert prompt.text == expected


#: Replacements that undo the changes that llama.cpp made to the templates (docs/decisions/0009).
PORTED = {
    "tools | tojson }}": "tools | tojson(separators=(',', ':')) }}",
    "'functions.' + tool_call['function']['name'] + ':' + (tool_call_counter.value | string)": "tool_call['id']",
    "{%- set _ = tool_response_queue.ids.append(formatted_id) -%}": "",
    "if tool_response_queue.ids": "if true",
    "tool_response_queue.ids.pop(0)": "message.tool_call_id",
}
_LAST_ANSWER = "last_non_tool_call_assistant_msg = idx -%}"
STOPS_AT_THE_LAST = {_LAST_ANSWER: _LAST_ANSWER + "{%- break -%}"}
IMAGES: list[dict[str, Any]] = [
    {"type": "text", "text": "see "},
    {"type": "image_url", "image_url": {"url": "x"}},
    {"type": "image", "image": "x"},
    {"type": "text", "text": "!"},
]
MORE_SHAPES = {
    **SHAPES,
    "nothing": ([], None),
    "nothing but tools": ([], TOOLS),
    "names": ([system(), {**user(), "name": "ann"}, {**assistant(), "name": "bo"}], None),
    "developer": ([{"role": "developer", "content": "rules"}, user()], None),
    "system later": ([user(), system()], None),
    "images": ([user(IMAGES), assistant(IMAGES), user()], None),
    "null content of a user": ([user(None), assistant(None)], None),
    "answer between calls": (
        [
            user(),
            calling("now", reasoning_content="a"),
            result(),
            assistant(reasoning_content="b"),
            user(),
            calling("now", first=1, reasoning_content="c"),
            result(1),
            calling("now", first=2, reasoning_content="d"),
        ],
        TOOLS,
    ),
    "foreign ids": ([user(), calling("now", first=77), result(77), result(5)], TOOLS),
}


@pytest.mark.parametrize(
    ("name", "port", "changes"),
    [
        ("kimi_k2", "Kimi-K2-Instruct.jinja", PORTED),
        ("kimi_k2_thinking", "Kimi-K2-Thinking.jinja", PORTED | STOPS_AT_THE_LAST),
    ],
)
def test_every_shape_equals_the_models_own_template(
    shared_data: Path, name: str, port: str, changes: dict[str, str]
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (shared_data / "templates/llama.cpp" / port).read_text()
    for ported, own in changes.items():
        assert ported in template
        template = template.replace(ported, own)
    fmt = dovetail.format(name)
    for shape, (messages, tools) in MORE_SHAPES.items():
        for open_turn in (True, False):
            [expected], _ = render_jinja_template(
                [messages],
                tools=sorted_deeply(tools),  # as the model's tokenizer does for the template
                chat_template=template,
                add_generation_prompt=open_turn,
            )
            for thinking in (True, False):
                prompt = fmt.render(messages, tools, thinking=thinking, add_generation_prompt=open_turn)
                assert prompt.text == expected, shape


#: The messages of SpecForge's references.
REFERENCES = {
    "standard": ["Who are you?", "My name is Qwen2.", "How old are you?", "11 years old."],
    "reasoning-multi-turn": [
        "Can you recommend a good restaurant in Shanghai?",
        "Sure! I think I can help with that.",
        "Where is the Peace Hotel?",
        "The Peace Hotel is located at the intersection of Nanjing East Road and the Bund.",
    ],
}


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(("name", "model"), [("kimi_k2", "kimi-k2-instruct"), ("kimi_k2_thinking", "kimi-k2-thinking")])
def test_ids_equal_those_of_the_models_own_tokenizer(
    shared_data: Path, kimi_tokenizer: Tokenizer, name: str, model: str, reference: str
) -> None:
    path = shared_data / f"render/specforge_references/{model}_{reference}_ref.json"
    turns = [(user, assistant)[i % 2](text) for i, text in enumerate(REFERENCES[reference])]
    prompt = dovetail.format(name).render([system("You are a helpful assistant."), *turns], add_generation_prompt=False)
    assert prompt.ids(kimi_tokenizer) == json.loads(path.read_text())["input_ids"]


def test_an_image_is_text_to_models_that_cannot_see(kimi_tokenizer: Tokenizer) -> None:
    for name in ("kimi_k2", "kimi_k2_thinking"):
        prompt = dovetail.format(name).render([user([{"type": "image", "image": "x"}])])
        assert not any("media" in segment.text for segment in prompt.segments if segment.control)
    assert "<|media_pad|>" in FMT.render([user([{"type": "image", "image": "x"}])]).pieces[1::2]


def test_a_declaration_without_typescript_form_is_compact_json() -> None:
    tool = {
        "type": "function",
        "function": {"parameters": {"type": "object", "properties": {"x": {"foo": 1}}}, "name": "f"},
    }
    text = FMT.render([{"role": "user", "content": "hi"}], [tool]).text
    assert (
        '[{"function":{"name":"f","parameters":{"properties":{"x":{"foo":1}},"type":"object"}},"type":"function"}]'
        in text
    )


def test_the_declaration_is_a_template_variable() -> None:
    """As in the model's own tokenizer; without the variable, the template writes JSON."""
    assert "type get_weather = " in FMT.template_variables([TOOL])["tools_ts_str"]
    undeclarable = {**TOOL, "function": {"name": "f", "parameters": {"properties": {"x": {"foo": 1}}}}}
    assert FMT.template_variables([undeclarable]) == {}


def test_tools_that_are_not_functions_are_compact_json() -> None:
    assert '[{"name":"browse","type":"builtin"}]' in FMT.render([], [{"type": "builtin", "name": "browse"}]).text


def test_a_foreign_tokenizer_is_refused(small_tokenizer: Tokenizer, shared_data: Path) -> None:
    gpt2 = dovetail.tokenizer(shared_data / "tokenizers/gpt-2.tokenizer.json")
    with pytest.raises(RenderError, match="im_user"):
        FMT.render([{"role": "user", "content": "hi"}]).ids(gpt2)
