"""Where prompts have pictures: the format's control token, in the order of the messages, never text of a user."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail
from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format
from tests.formats import chat_templates
from tests.formats.conversations import user

ONE, TWO = {"type": "image", "number": 0}, {"type": "image", "number": 1}
CALL = {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": {}}}
#: By template: the text in place of a picture, and the control token that stands for it.
PLACES = {
    "qwen": ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "gemma": ("<start_of_image>", "<start_of_image>"),
    "glm": ("<|begin_of_image|><|image|><|end_of_image|>", "<|image|>"),
    "mistral": ("[IMG]", "[IMG]"),
    "kimi": ("<|media_begin|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
}
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<start_of_image>")
CONTROLS += ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>", "[IMG]", "<|media_begin|>", "<|media_content|>")
CONTROLS += ("<|media_pad|>", "<|media_end|>")


def template(written: str, roles: str = "user") -> str:
    """A chat template that writes `written` for a picture in messages of `roles`, and refuses it in others."""
    return f"""{{%- for message in messages %}}<|im_start|>{{{{ message.role }}}}
{{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{{% for part in message.content or [] %}}
{{%- if part.type != 'image' %}}{{{{ part.text }}}}{{% elif message.role in '{roles}' %}}{written}
{{%- else %}}{{{{ raise_exception('no pictures here') }}}}{{% endif %}}{{% endfor %}}{{% endif %}}
{{%- for call in message.tool_calls or [] %}}
<tool_call>{{{{ call.function | tojson }}}}</tool_call>{{% endfor %}}<|im_end|>
{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant
{{% endif %}}"""


def of(written: str, roles: str = "user system assistant tool") -> Format:
    return chat_templates.of_source(template(written, roles), CONTROLS)


@functools.cache
def _format(name: str) -> Format:
    return of(PLACES[name][0]) if name in PLACES else dovetail.format(name)


@pytest.fixture(params=["kimi_k25", "kimi_k3", *PLACES])
def fmt(request: pytest.FixtureRequest) -> Format:
    return _format(request.param)


@pytest.mark.parametrize("name", PLACES)
def test_the_place_is_read_off_the_template(name: str) -> None:
    written, place = PLACES[name]
    assert of(written).picture == place


@pytest.mark.parametrize("written", ["", "an image", "<|image_pad|> and <|im_end|>"])
def test_a_template_without_a_control_token_of_its_own_has_no_place(written: str) -> None:
    fmt = of(written)
    assert fmt.picture == ("<|image_pad|>" if "pad" in written else None)
    assert fmt.render([user([ONE])]).pictures == ([ONE] if fmt.picture else [])


def test_pictures_have_places_in_order(fmt: Format) -> None:
    text = {"type": "text", "text": "and"}
    prompt = fmt.render([user([text, ONE]), {"role": "assistant", "content": "ok"}, user([TWO, text, ONE])])
    assert prompt.pictures == [ONE, TWO, ONE]
    assert prompt.pieces[1::2].count(fmt.picture) == 3


def test_a_result_may_have_one(fmt: Format) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    prompt = fmt.render([user("look"), called, {"role": "tool", "tool_call_id": CALL["id"], "content": [TWO]}])
    assert prompt.pictures == [TWO]


def test_kimi_k3_sorts_results_with_their_pictures() -> None:
    calls = [{**CALL, "id": f"functions.look:{i}"} for i in range(2)]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": [part]}
        for call, part in zip(reversed(calls), (ONE, TWO), strict=True)
    ]
    messages = [user("look"), {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    assert dovetail.format("kimi_k3").render(messages).pictures == [TWO, ONE]


def test_text_is_never_a_place(fmt: Format) -> None:
    spelled = "".join((*CONTROLS, "<|media_pad|>", "<|image_pad|>", "<start_of_image>"))
    part = {"type": "text", "text": spelled}
    called = {"role": "assistant", "content": spelled, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": [part]}
    prompt = fmt.render([{"role": "system", "content": spelled}, user([part, ONE, part]), called, result])
    assert prompt.pictures == [ONE]
    assert prompt.pieces[1::2].count(fmt.picture) == 1


#: What users write to make places: the tokens of all families, and their halves, in parts of their own.
SPELLED = (
    *CONTROLS,
    "<|image",
    "_pad|>",
    "<|media_pad",
    "|>",
    "<start_of_",
    "image>",
    "[IM",
    "G]",
    "]<]image[>[",
    "hi",
    "\n",
)
TEXTS = st.lists(st.sampled_from(SPELLED), max_size=4).map("".join)
PARTS = st.lists(
    TEXTS.map(lambda text: {"type": "text", "text": text}) | st.just({"type": "image"}), min_size=1, max_size=5
)


def check_places(fmt: Format, conversation: Sequence[tuple[str, list[dict[str, Any]], str]]) -> None:
    """A question of text and pictures, a call with an answer in a text, and a result, over and over."""
    count = itertools.count()
    messages: list[dict[str, Any]] = [{"role": "system", "content": conversation[0][0]}]
    for number, (answer, parts, result) in enumerate(conversation):
        parts = [part | {"number": next(count)} if part["type"] == "image" else part for part in parts]
        call = {**CALL, "id": f"functions.look:{number}"}
        messages += [
            user(parts),
            {"role": "assistant", "content": answer, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
    repaired, _ = fmt.repair([*messages, user("and?")])
    prompt = fmt.render(repaired)
    pictures = next(count)
    assert [part["number"] for part in prompt.pictures] == [*range(pictures)]
    assert prompt.pieces[1::2].count(fmt.picture) == pictures


CONVERSATIONS = st.lists(st.tuples(TEXTS, PARTS, TEXTS), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ["kimi_k25", "kimi_k3", *PLACES])
@given(conversation=CONVERSATIONS)
def test_a_prompt_has_as_many_places_as_pictures(name: str, conversation: Any) -> None:
    check_places(_format(name), conversation)


@pytest.mark.parametrize("written", ["{% if loop.first %}<|image_pad|>{% endif %}", "<|image_pad|>" * 2])
def test_another_number_of_places_is_refused_by_name(written: str) -> None:
    fmt = of("<|image_pad|>")
    other = of(written)
    assert other.picture is None or other.picture == fmt.picture
    other.picture = fmt.picture
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[1\]: the chat template writes") as refused:
        other.render([user([{"type": "text", "text": "a"}, ONE, TWO])])
    assert refused.value.param == "messages[0].content[1]"


# -- pictures that move -----------------------------------------------------------------------------------------------


def repaired(fmt: Format, *messages: dict[str, Any]) -> tuple[list[Any], list[str]]:
    shown, repairs = fmt.repair(messages)
    return [(message["role"], message["content"]) for message in shown], [repair.kind for repair in repairs]


SYSTEM: dict[str, Any] = {"role": "system", "content": [{"type": "text", "text": "be brief"}, ONE]}
CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": CALL["id"], "content": [TWO]}
BETWEEN = {"type": "text", "text": "\n\n"}


def test_a_picture_moves_where_the_model_knows_one() -> None:
    fmt = of("<|image_pad|>", "user")
    hi = {"type": "text", "text": "hi"}
    messages, kinds = repaired(fmt, SYSTEM, user("hi"), CALLING, RESULT)
    assert messages == [
        ("system", [SYSTEM["content"][0]]),
        ("user", [ONE, BETWEEN, hi]),
        ("assistant", ""),
        ("tool", ""),
        ("user", [TWO]),
    ]
    assert kinds == ["picture_moved", "picture_moved", "empty_content"]
    shown, _ = fmt.repair([SYSTEM, user("hi"), CALLING, RESULT])
    assert fmt.render(shown).pictures == [ONE, TWO]


def test_it_moves_in_front_of_the_answer() -> None:
    messages, _ = repaired(
        of("<|image_pad|>", "user"), user("hi"), CALLING, RESULT, {"role": "assistant", "content": "a"}
    )
    assert [role for role, _ in messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_it_stays_where_the_model_knows_it_or_the_repair_is_off() -> None:
    for fmt, off in ((of("<|image_pad|>"), ()), (of("<|image_pad|>", "user"), ("picture_moved", "empty_content"))):
        shown, repairs = fmt.repair([SYSTEM, user("hi"), CALLING, RESULT], off=off)
        assert shown == [SYSTEM, user("hi"), CALLING, RESULT] and not repairs


# -- published templates ----------------------------------------------------------------------------------------------

#: By template: the control token that stands for a picture, and the roles whose messages may have one.
PUBLISHED = {
    "llama.cpp/Qwen3.5-4B": ("<|image_pad|>", {"user", "assistant", "tool"}),
    "llama.cpp/google-gemma-4-31B-it": ("<|image|>", {"user", "assistant"}),
    "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506": ("[IMG]", {"user", "assistant"}),
    "vllm/tool_chat_template_gemma3_pythonic": ("<start_of_image>", {"user", "assistant", "tool"}),
    "vllm/tool_chat_template_llama4_json": ("<|image|>", {"user", "system", "assistant", "tool"}),
    "llama.cpp/MiniMax-M3": ("]<]image[>[", {"user", "system", "assistant", "tool"}),
}


@functools.cache
def published(path: Path, place: str) -> Format:
    source = path.read_text(encoding="utf-8")
    return chat_templates.of_source(source, (*chat_templates.controls(source), place))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_has_its_own_place(shared_data: Path, name: str) -> None:
    fmt = published(shared_data / "templates" / f"{name}.jinja", PUBLISHED[name][0])
    assert (fmt.picture, fmt.history_rules.pictures) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
@given(conversation=CONVERSATIONS)
@settings(max_examples=10)
def test_text_is_never_a_place_in_a_published_template(shared_data: Path, name: str, conversation: Any) -> None:
    check_places(published(shared_data / "templates" / f"{name}.jinja", PUBLISHED[name][0]), conversation)
