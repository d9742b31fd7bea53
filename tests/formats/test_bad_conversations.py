"""Bad input, for every format that renders: an error that names the bad field, in bounded time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest

import dovetail
from dovetail.conversation import check_renderable, deepest
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from tests.formats.conversations import assistant, user
from tests.reading.families import RENDERING

#: A conversation with every field. Errors name a field by its path.
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call00000", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call00000", "name": "now", "content": "12:00"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"type": "string", "description": "Where"}},
            },
        },
    }
]
CONVERSATION = {"messages": MESSAGES, "tools": TOOLS}


def paths(value: Any, where: str = "") -> Iterator[str]:
    """The paths of all values in the conversation, down to a tool's parameters."""
    if where:
        yield where
    if where.endswith(".parameters"):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from paths(item, f"{where}[{i}]")


def changed(path: str, value: Any) -> dict[str, Any]:
    """The conversation with `value` at `path`."""
    conversation: Any = copy.deepcopy(CONVERSATION)
    *above, last = path.replace("[", ".").replace("]", "").split(".")
    holder = conversation
    for key in above:
        holder = holder[int(key) if isinstance(holder, list) else key]
    holder[int(last) if isinstance(holder, list) else last] = value
    return conversation


def render(name: str, conversation: dict[str, Any], **options: Any) -> str:
    return dovetail.format(name).render(conversation["messages"], conversation["tools"], **options).text


def refusal(name: str, conversation: dict[str, Any], **options: Any) -> DovetailError:
    with pytest.raises((InvalidRequest, RenderError)) as caught:
        render(name, conversation, **options)
    str(caught.value).encode()
    assert len(str(caught.value)) < 1000
    return caught.value


def test_the_conversation_has_every_field() -> None:
    assert set(paths(CONVERSATION)) >= {"messages[2].tool_calls[0].function.arguments", "tools[0].function.parameters"}


def cyclic() -> Any:
    items: list[Any] = []
    items.append({"type": "text", "text": items, "again": items})
    return items


@functools.cache
def deep() -> Any:
    value: Any = "x"
    for i in range(100_000):
        value = [value] if i % 2 else {"type": value}
    return value


#: Fields that may have a value of any type, because templates print or ignore them.
_FREE = ("messages[2].tool_calls[0].type",)
FIELDS = [path for path in paths(CONVERSATION) if path not in _FREE]


def refused_field(name: str, conversation: dict[str, Any]) -> str | None:
    """The field that an error names; None if the prompt is the same, because the family does not show the field."""
    try:
        text = render(name, conversation)
    except (InvalidRequest, RenderError) as error:
        str(error).encode()
        assert error.param is not None
        return error.param
    assert text == render(name, CONVERSATION)
    return None


def check(name: str, path: str, wrong: Any) -> None:
    """An error about a wrong value names its field, a field inside it or one around it."""
    named = refused_field(name, changed(path, wrong))
    assert named is None or ((named.startswith(path) or path.startswith(named)) and len(named) < len(path) + 80), wrong


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("name", RENDERING)
def test_a_wrong_type_is_named(name: str, path: str) -> None:
    for wrong in (5, 2.5, True, b"bytes", {1}, object(), {"a": 1}, ["x"], cyclic()):
        if not (isinstance(wrong, dict) and path.endswith((".parameters", ".arguments"))):
            check(name, path, wrong)


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("name", RENDERING)
def test_too_deep_nesting_is_named(name: str, path: str) -> None:
    check(name, path, deep())


TEXTS = (".content", ".text", "_content", ".id", "_id", ".name", ".description", ".arguments")


@pytest.mark.parametrize("path", [path for path in FIELDS if path.endswith(TEXTS)])
@pytest.mark.parametrize("name", RENDERING)
def test_a_lone_surrogate_is_named(name: str, path: str) -> None:
    check(name, path, "a\ud800b")


@pytest.mark.parametrize("name", RENDERING)
def test_schemas_that_a_format_cannot_write_are_named(name: str) -> None:
    for levels in (200, 300, 480):
        value: Any = {"type": "string"}
        for _ in range(levels):
            value = {"type": "object", "properties": {"a": value}}
        try:
            render(name, changed("tools[0].function.parameters", value))
        except (InvalidRequest, RenderError) as error:
            assert error.param == "tools[0].function.parameters"


def test_the_deepest_field_is_found() -> None:
    deep_in: dict[str, Any] = {"a": [{"a": [{"a": ["text"] * 3}]}] * 2}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep_in}}
    assert deepest([user()], [tool], {}) == "tools[0].function.parameters"
    assert deepest([user(), {"role": "user", "x": {"x": [tool]}}], [tool], {}) == "messages[1]"
    assert deepest([user()], None, {"response_format": deep_in}) == "chat_template_kwargs.response_format"


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_wrong_values_in_fields_of_deepseek_are_named(name: str) -> None:
    for wrong in ({"a": 1}, ["x"]):
        conversation = {"messages": [user(), {**assistant("x"), "reasoning": wrong}], "tools": None}
        assert refusal(name, conversation, add_generation_prompt=False).param == "messages[1].reasoning"
    for tools in (5, [5]):
        messages = [{"role": "system", "content": "x", "tools": tools}, user()]
        for declared in (None, TOOLS):
            error = refusal(name, {"messages": messages, "tools": declared})
            assert (error.param or "").startswith("messages[0].tools")
    if name != "deepseek_v32":
        for task in ([], {}, "", 5):
            assert refusal(name, {"messages": [{**user(), "task": task}], "tools": None}).param == "messages[0].task"


@pytest.mark.parametrize("name", RENDERING)
def test_a_lone_surrogate_in_a_schema_is_named_to_the_key(name: str) -> None:
    conversation = copy.deepcopy(CONVERSATION)
    zone: Any = conversation["tools"][0]["function"]["parameters"]["properties"]["zone"]
    zone["description"] = "\udfff"
    where = "tools[0].function.parameters.properties.zone"
    assert refused_field(name, conversation) in (f"{where}.description", None)
    zone["description"] = "Where"
    zone["\udfff"] = 1
    assert refused_field(name, conversation) in (where, None)


@pytest.mark.parametrize("name", RENDERING)
def test_a_cyclic_schema_is_named_where_it_closes(name: str) -> None:
    conversation = copy.deepcopy(CONVERSATION)
    parameters: Any = conversation["tools"][0]["function"]["parameters"]
    parameters["properties"]["zone"]["items"] = parameters
    assert refused_field(name, conversation) in ("tools[0].function.parameters.properties.zone.items", None)


@pytest.mark.parametrize("name", RENDERING)
def test_a_nul_character_is_text(name: str) -> None:
    assert "a\0b" in render(name, changed("messages[1].content[0].text", "a\0b"))


@pytest.mark.parametrize("name", RENDERING)
def test_long_texts_and_schemas_are_written(name: str) -> None:
    long = "x" * 10_000_000
    assert long in render(name, changed("messages[1].content[0].text", long))
    shown = render(name, CONVERSATION)
    text = render(name, changed("tools[0].function.description", long))
    assert long in text or text == shown  # some families declare no tools
    many = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
    text = render(name, changed("tools[0].function.parameters", many))
    assert "p19999" in text or text == shown


@pytest.mark.parametrize("name", RENDERING)
def test_unknown_roles_are_refused(name: str) -> None:
    for role in ("narrator", "", "User", None):
        assert refusal(name, changed("messages[1].role", role)).param == "messages[1].role"
    without = copy.deepcopy(CONVERSATION)
    del without["messages"][1]["role"]
    assert refusal(name, without).param == "messages[1].role"


@pytest.mark.parametrize("name", RENDERING)
@pytest.mark.parametrize("messages", (None, 5, True, "words", b"bytes", {"role": "user"}, object(), [[user()]]))
def test_messages_that_are_not_a_list_are_refused(name: str, messages: Any) -> None:
    for continues in (True, False):
        options = {"continue_final_message": True, "add_generation_prompt": False} if continues else {}
        error = refusal(name, {"messages": messages, "tools": None}, **options)
        assert (error.param or "").startswith("messages")


@pytest.mark.parametrize("name", RENDERING)
@pytest.mark.parametrize("path", [path for path in paths([assistant("x", reasoning_content="y")], "messages")][1:])
def test_a_message_to_continue_is_checked_like_any_other(name: str, path: str) -> None:
    for wrong in (5, object(), {"a": 1}, ["x"], "\ud800"):
        holder: dict[str, Any] = {"messages": [user(), assistant("x")], "tools": None}
        if path.endswith("]"):
            holder["messages"][1] = wrong
        else:
            holder["messages"][1][path.rpartition(".")[2]] = wrong
        options = {"continue_final_message": True, "add_generation_prompt": False}
        try:
            render(name, holder, **options)
        except (InvalidRequest, RenderError) as error:
            assert (error.param or "").startswith("messages[1]"), wrong
        else:
            assert path.endswith("reasoning_content")  # which a family may ignore


@pytest.mark.parametrize("name", RENDERING)
def test_no_part_is_dropped_silently(name: str) -> None:
    without = render(name, changed("messages[1].content", []))
    for part in ({"type": "input_audio", "input_audio": {}}, {"type": "text"}, {"type": "text", "text": None}, {}):
        conversation = changed("messages[1].content[0]", part)
        try:
            assert render(name, conversation) != without, part
        except (InvalidRequest, RenderError) as error:
            assert (error.param or "").startswith("messages[1].content"), part


@pytest.mark.parametrize("name", RENDERING)
def test_options_that_are_not_declared_are_refused(name: str) -> None:
    assert refusal(name, CONVERSATION, colour="red").param == "chat_template_kwargs.colour"


def test_a_conversation_with_nothing_wrong_passes() -> None:
    check_renderable(MESSAGES, TOOLS)
    check_renderable([], None)


def test_the_search_for_a_bad_field_has_a_maximum_depth() -> None:
    value: Any = "\ud800"
    for _ in range(300):
        value = {"x": value}
    with pytest.raises(InvalidRequest) as caught:
        check_renderable([{"role": "user", "content": "x", "extra": value}], None)
    assert (caught.value.param or "").startswith("messages[0].extra.x.x")
    assert len(caught.value.param or "") < 60


def test_long_keys_are_not_part_of_a_path() -> None:
    for key in ("k" * 1000, 5):
        with pytest.raises(InvalidRequest) as caught:
            check_renderable([{"role": "user", "content": "x", "extra": {key: "\ud800"}}], None)
        assert caught.value.param == "messages[0].extra"
