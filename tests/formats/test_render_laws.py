"""Laws 7 and 8 for every family that renders: golden prompts, both ends agree, and user text stays text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.declarations import sorted_json
from tests.formats.conversations import TOOLS, assistant, user
from tests.reading.families import RENDERING, PieceTokenizer, controls

GOLDENS = Path(__file__).with_name("goldens")


@pytest.mark.parametrize("name", RENDERING)
def test_the_golden_prompt(name: str) -> None:
    """Harmony's was compared with the ids that oss-harmony 0.0.11 makes of the conversation, Inkling's with the text of
    tml-renderers 0.2.1 (without the last token, which vLLM adds)."""
    case = json.loads((GOLDENS / f"{name}.json").read_text())
    prompt = dovetail.format(name).render(case["messages"], case["tools"], **case["options"])
    assert prompt.text + "\n" == (GOLDENS / f"{name}.txt").read_text()


# -- both ends --------------------------------------------------------------------------------------------------------

#: The values of `thinking` for which a family's history shows an answer as the model wrote it. DeepSeek V3, V3.1 and
#: Kimi K2 never show reasoning again; the template of K2-Thinking always writes the block, and Inkling's prompts what
#: reasoning there was.
THINKING = {
    **dict.fromkeys(RENDERING, (True, False)),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31", "kimi_k2"), (False,)),
    **dict.fromkeys(("kimi_k2_thinking", "inkling"), (True,)),
}
texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12)
calls = st.builds(
    Call,
    st.integers(0, 9).map("functions.now:{}".format),
    st.sampled_from(("get_weather", "now", "a-b.c")),
    st.dictionaries(st.sampled_from("ab"), texts | st.integers()).map(lambda a: json.dumps(a, ensure_ascii=False)),
)


#: Which answers a history with reasoning shows as the model wrote them. DeepSeek V3.2 refuses an answer without
#: reasoning, Harmony writes no answer without content, and Kimi drops the reasoning of an answer without calls.
SHOWN: dict[str, Callable[[Message], object]] = {
    "deepseek_v32": lambda message: message.reasoning or message.calls,
    "harmony": lambda message: message.content or message.calls,
    "kimi_k2_thinking": lambda message: message.reasoning and message.calls,
    "kimi_k25": lambda message: not message.reasoning or message.calls,
}


@pytest.mark.parametrize(("name", "thinking"), [(name, on) for name, values in THINKING.items() for on in values])
@given(message=st.builds(Message, texts, texts, st.lists(calls, max_size=3).map(tuple)))
def test_a_history_shows_an_answer_as_the_model_wrote_it(name: str, thinking: bool, message: Message) -> None:
    assume(not (thinking or name == "harmony") or SHOWN.get(name, bool)(message))
    fmt = dovetail.format(name)
    options = {"auto_drop_analysis": False} if name == "harmony" else {}
    history = assistant(message.content, reasoning_content=message.reasoning)
    if name == "inkling":  # its models write the JSON that their prompts show
        message = Message(
            message.content,
            message.reasoning,
            tuple(Call(c.id, c.name, sorted_json(json.loads(c.arguments))) for c in message.calls),
        )
    if message.calls:
        made = [{"id": c.id, "function": {"name": c.name, "arguments": c.arguments}} for c in message.calls]
        history["tool_calls"] = made
    opened = fmt.render([user()], TOOLS, thinking=thinking, **options)
    closed = fmt.render([user(), history], TOOLS, thinking=thinking, add_generation_prompt=False, **options)
    written = fmt.write(message, thinking=thinking or name == "harmony")
    # Harmony ends an answer with another control token in a history.
    answer = "".join("<|end|>" if text == "<|return|>" and control else text for text, control in written.segments)
    assert opened.text + answer == closed.text


# -- user text --------------------------------------------------------------------------------------------------------

DSML = ("deepseek_v32", "deepseek_v4", "deepseek_v41")
#: Control tokens that only prompts contain.
PROMPT_CONTROLS = {
    "deepseek": (
        *("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<｜latest_reminder｜>"),
        *("<｜deepseek_image｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
        *("<｜tool▁output▁end｜>", "<｜query｜>"),
    ),
    "kimi_k3": ("<|media_pad|>",),
    "inkling": ("<|message_user|>", "<|message_system|>", "<|message_tool|>", "<|content_xml|>"),
    "kimi_k2": ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<think>", "</think>"),
    "harmony": ("<|start|>",),
}
PROMPT_CONTROLS["kimi_k25"] = (
    *PROMPT_CONTROLS["kimi_k2"],
    *("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
)


def all_controls(name: str) -> tuple[str, ...]:
    more = (literal for prefix, literals in PROMPT_CONTROLS.items() if name.startswith(prefix) for literal in literals)
    return tuple(dict.fromkeys((*controls(name), *more)))


def everywhere(name: str, content: str, word: str, key: str, value: str) -> dict[str, Any]:
    """What `render` takes, with text of the request in every field that may contain text."""

    def call(arguments: Any) -> dict[str, Any]:
        return {"id": word, "type": word, "function": {"name": word, "arguments": arguments}}

    arguments = [json.dumps({key: value}), {key: value, "l": [value]}, "no JSON" + value, json.dumps("no JSON" + value)]
    schema = {"type": "string", "description": value, "title": value, "enum": [value], "default": value}
    properties = {key: {**schema, "examples": [value]}, "o": {"oneOf": [schema, {"type": [value]}]}}
    parameters = {"type": "object", "properties": properties, "required": [key]}
    tools = [{"type": "function", "function": {"name": word, "description": value, "parameters": parameters}}]
    part = {"type": "text", "text": content}
    reasoned = {"role": "assistant", "content": content, "reasoning_content": "r" + content}
    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": content, "name": word},
        {"role": "user", "content": [part, part], "name": word},
        reasoned,
        {"role": "user", "content": content},
        {**reasoned, "name": word, "tool_calls": [call(each) for each in arguments]},
        *({"role": "tool", "tool_call_id": word, "name": word, "content": content} for _ in arguments),
        reasoned,
    ]
    options: dict[str, Any] = {}
    if name in DSML:
        own = {"tools": tools, "response_format": {key: value}}
        messages.insert(1, {"role": "system", "content": content, **own})
        options["response_format"] = {key: value}
        if name != "deepseek_v41":
            messages.insert(1, {"role": "developer", "content": "d" + content, **own})
        if name != "deepseek_v32":
            messages.insert(1, {"role": "latest_reminder", "content": content})
            messages.append({"role": "user", "content": [part, {"type": "image"}]})
    elif name.startswith(("kimi", "harmony")):
        messages += [{"role": "developer", "content": content}, {"role": "assistant", "content": content}]
        if name == "harmony":
            messages.append({"role": "developer", "content": content, "tools": tools})
            options |= {"model_identity": content, "current_date": content}
        else:
            messages.append({"role": "user", "content": [part, {"type": "image_url", "image_url": content}, part]})
        if name == "kimi_k3":
            messages.append({"role": "developer", "tools": tools})
            schema_format = {"type": "json_schema", "json_schema": {"schema": {key: value}}}
            options |= {"response_format": schema_format, "tool_choice": "required"}
    return {"messages": messages, "tools": tools, **options}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", RENDERING)
@given(data=st.data())
def test_user_text_never_becomes_a_control_token(name: str, thinking: bool, data: st.DataObject) -> None:
    """The control ids of a conversation are those of the same conversation with harmless words."""
    literals = all_controls(name)
    control = st.sampled_from(literals)
    words = st.sampled_from(("message", "think", '" role="system', "</", "<|", "analysis", " to="))
    field = st.lists(control | words | st.text(st.characters(codec="utf-8"), max_size=5), max_size=3).map("".join)
    content, word, key, value = (data.draw(field) or harmless for harmless in "cwkv")
    tokenizer = PieceTokenizer((*literals, *PROMPT_CONTROLS["kimi_k25"]), ("message", "think"))

    def control_ids(*texts: str) -> list[int]:
        ids = dovetail.format(name).render(**everywhere(name, *texts), thinking=thinking).ids(tokenizer)
        return [token for token in ids if token in tokenizer.control_literals]

    assert control_ids(content, word, key, value) == control_ids(*"cwkv")
