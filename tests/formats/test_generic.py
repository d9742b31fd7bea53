"""Tools for chat templates that show none: how they are declared, called and answered, and when they are not."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.events import Call, Message
from dovetail.formats.derived import generic
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.formats.derived.proof import Verdict
from dovetail.formats.families.hermes import Hermes
from dovetail.grammar.matcher import compile
from tests.formats import chat_templates
from tests.formats.chat_templates import PLAIN
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user
from tests.formats.test_render_laws import everywhere
from tests.grammar.test_matcher import allows
from tests.reading.families import PieceTokenizer

#: As Gemma 2: no system messages, turns alternate, and other names of roles.
ALTERNATING = """{{ bos_token }}{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}
{{- '<|im_start|>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<|im_end|>\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""
#: Content in parts, and no system messages: they are left out.
PARTS = """{%- for m in messages if m.role in ('user', 'assistant') %}{{ '<|im_start|>' + m.role + '\n' }}
{%- for part in m.content %}{{ part.text }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
#: A system message of its own, unless there is one.
DEFAULT = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are small.<|im_end|>\n{% endif %}" + PLAIN
REASONING = PLAIN.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n").replace(
    "{{ message.content }}", "{{ message.content.split('</think>')[-1] }}"
)
INLINE = {"plain": PLAIN, "alternating": ALTERNATING, "parts": PARTS, "default": DEFAULT, "reasoning": REASONING}
PUBLISHED = (
    "llama.cpp/HuggingFaceTB-SmolLM3-3B",
    "llama.cpp/google-gemma-2-2b-it",
    "llama.cpp/llama-cpp-rwkv-world",
    "vllm/step5_vl",
)
TAGS = ("<tool_call>", "</tool_call>")
CONTROLS = ("<|im_start|>", "<|im_end|>", "</s>", "<think>", "</think>")

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
DECLARED = generic._BEFORE_TOOLS + "\n".join(json.dumps(t, ensure_ascii=False) for t in TOOLS) + generic._AFTER_TOOLS


def fmt_of(name: str, *more: str, generic_tools: bool = True) -> JinjaFormat:
    ends = ("<|im_end|>", "</s>")
    return chat_templates.of_source(INLINE[name], (*CONTROLS, *more), ends=ends, generic_tools=generic_tools)


def published(shared_data: Path) -> list[tuple[str, JinjaFormat, JinjaFormat]]:
    """Each published template's format with generic tools, and without."""
    formats = []
    for name in PUBLISHED:
        source = (shared_data / f"templates/{name}.jinja").read_text(encoding="utf-8")
        with_and_without = (
            chat_templates.of_source(source, chat_templates.controls(source), generic_tools=on) for on in (True, False)
        )
        formats.append((name, *with_and_without))
    return formats


def prompt(fmt: JinjaFormat, messages: Any, tools: Any = None, **options: Any) -> str:
    return fmt.render(fmt.repair(messages, tools)[0], tools, **options).text


# -- when --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INLINE)
def test_a_template_without_tools_gets_them(name: str) -> None:
    fmt, without = fmt_of(name), fmt_of(name, generic_tools=False)
    assert (fmt.family_name, fmt.reads_calls, fmt.verdict) == ("generic", True, Verdict())
    assert (without.family_name, without.reads_calls) == ("plain", False)
    for shape, (messages, tools) in SHAPES.items():
        with_calls = tools or any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if not with_calls and not (name == "alternating" and messages[0]["role"] == "system"):
            assert fmt.repair(messages) == without.repair(messages), shape
            assert prompt(fmt, messages) == prompt(without, messages), shape


def test_published_templates_without_tools_get_them(shared_data: Path) -> None:
    for name, fmt, without in published(shared_data):
        assert (fmt.family_name, without.family_name) == ("generic", "plain"), name
        assert fmt.verdict is not None and not fmt.verdict.reading, name
        questions = [user("a"), assistant("b"), user("c")]
        assert fmt.repair(questions) == without.repair(questions), name
        assert prompt(fmt, questions) == prompt(without, questions), name
        history = [user("a"), calling("now", arguments={}), result(0, "noon", "now")]
        shown = prompt(fmt, history, TOOLS)
        assert [word in shown for word in (DECLARED, CALL, "<tool_response>\nnoon\n</tool_response>")] == [True] * 3


@pytest.mark.parametrize(
    "source",
    [
        chat_templates.HERMES,  # it shows calls
        "{{ tools | tojson }}" + PLAIN,  # it shows tools
        "{% for message in messages %}{{ message.content }}\n{% endfor %}",  # nothing ends its turns
        PLAIN.replace("{{ message.content }}", "{{ message.content | upper }}"),  # calls would not read back
        "{{ raise_exception('no') }}",
    ],
)
def test_other_templates_do_not(source: str) -> None:
    assert chat_templates.of_source(source, (*CONTROLS, *TAGS), ends=()).family_name != "generic"


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_tools_stand_after_the_system_message() -> None:
    fmt = fmt_of("default")
    head, rest = "<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    assert prompt(fmt, [user("Hi.")], TOOLS) == head + DECLARED + rest
    assert prompt(fmt, [system("Be brief."), user("Hi.")], TOOLS) == f"{head}Be brief.\n\n{DECLARED}{rest}"
    assert prompt(fmt, [system(""), user("Hi.")], TOOLS) == head + DECLARED + rest


@pytest.mark.parametrize("name", ["alternating", "parts"])
def test_without_system_messages_tools_stand_before_the_first_message_of_the_user(name: str) -> None:
    fmt = fmt_of(name)
    shown = prompt(fmt, [user("Hi."), assistant("Ho."), user("So?")], TOOLS).removeprefix("<s>")
    assert shown.startswith(f"<|im_start|>user\n{DECLARED}\n\nHi.<|im_end|>\n<|im_start|>")
    assert shown.count("# Tools") == 1
    alone = prompt(fmt_of("parts"), [assistant("Ho.")], TOOLS)
    assert alone.startswith(f"<|im_start|>user\n{DECLARED}<|im_end|>\n<|im_start|>assistant\nHo.<|im_end|>")


@pytest.mark.parametrize("name", INLINE)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_calls_and_results_are_text(name: str, tools: Any) -> None:
    """Also without the request's tools. Results come in the order of their calls, before what the user says next."""
    fmt = fmt_of(name)
    called = calling("get_weather", "now", content="Let me look.", arguments='{"city": "é"}')
    answers = [result(1, "noon", "now"), result(0, "clear")]
    shown = prompt(fmt, [user("Hi."), called, *answers, user("And?")], tools)
    assert (
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {"city": "é"}}\n</tool_call><|im_end|>\n<|im_start|>user\n'
        "<tool_response>\nclear\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\n\nAnd?<|im_end|>\n"
    ) in shown
    assert ("# Tools" in shown) == (tools is not None)
    for content, arguments in itertools.product(("", None), ({}, "{}", "")):
        silent = prompt(fmt, [user("Hi."), calling("now", content=content, arguments=arguments), result(0, "x")], tools)
        assert f"\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nx\n</tool_response><|im_end|>" in silent


def test_turns_that_have_to_alternate() -> None:
    fmt = fmt_of("alternating")
    assert fmt.history_rules.alternation == "neighbours"
    called = [calling("now", arguments={}), result(0, "noon", "now")]
    again = [calling("now", arguments={}, first=1), result(1, "one", "now")]
    for history in (
        [user(), *called, *again, assistant(), user()],
        [user(), assistant("I look."), *called, user("And?"), *again],
        [*called, assistant("Noon."), assistant("Yes."), user()],
    ):
        assert "noon" in prompt(fmt, history, TOOLS)


def test_what_was_done_is_reported() -> None:
    fmt, history = fmt_of("plain"), [user(), calling("now", arguments={}), result(0, "noon", "now")]
    for messages, tools, reported in (
        ([user()], None, []),
        ([user()], TOOLS, ["generic_tools"]),
        (history, None, ["generic_tools"]),
    ):
        assert [repair.kind for repair in fmt.repair(messages, tools)[1]] == reported
    assert fmt.repair(history, TOOLS, off=("generic_tools",))[1] == []


# -- control tokens ----------------------------------------------------------------------------------------------------

_field = st.lists(
    st.sampled_from((*CONTROLS, *TAGS, "<tools>", "</tool_response>", "<|", "</")) | st.text(max_size=5), max_size=3
)


@pytest.mark.parametrize(("name", "more"), [("plain", TAGS), ("alternating", ()), ("parts", TAGS)])
@given(fields=st.tuples(*[_field.map("".join)] * 4))
def test_no_text_becomes_a_control_token(name: str, more: tuple[str, ...], fields: tuple[str, ...]) -> None:
    fmt = fmt_of(name, *more)
    tokenizer = PieceTokenizer((*CONTROLS, *TAGS), ("ing",))

    def controls(*texts: str) -> list[int]:
        sent = everywhere(name, *texts)
        if name == "alternating":
            sent["messages"] = sent["messages"][1:]
        repaired, _ = fmt.repair(sent["messages"], sent["tools"])
        ids = fmt.render(repaired, sent["tools"]).ids(tokenizer)
        return [token for token in ids if token in tokenizer.control_literals]

    assert controls(*(field or clean for field, clean in zip(fields, "cwkv", strict=True))) == controls(*"cwkv")


def test_tags_that_the_tokenizer_knows_are_tokens() -> None:
    """In prompts and answers, as in a fine-tune of Qwen whose template lost its tools."""
    message = Message("Well.", "", (Call("", "now", "{}"),))
    for name, more in itertools.product(("plain", "alternating", "parts"), ((), TAGS)):
        fmt = fmt_of(name, *more)
        history = [user(), calling("now", arguments={}, content="Well."), result(0, "x", "now")]
        messages, _ = fmt.repair(history)
        shown = fmt.render(messages, add_generation_prompt=False)
        assert [text for text in shown.pieces[1::2] if text in TAGS] == list(more)
        assert [text for text, control in fmt.write(message).segments if control] == [*more, "<|im_end|>"]
        assert fmt.write(message).text == f"Well.\n{CALL}<|im_end|>"
        grammar, tokenizer = fmt.grammar(TOOLS), PieceTokenizer((*CONTROLS, *more), ("ing",))
        assert grammar is not None
        constraint = compile(grammar, tokenizer, [tokenizer.control["<|im_end|>"]])
        assert allows(constraint, fmt.write(message).ids(tokenizer))
        wrong = Message("Well.", "", (Call("", "other", "{}"),))
        assert not allows(
            compile(grammar, tokenizer, [tokenizer.control["<|im_end|>"]]), fmt.write(wrong).ids(tokenizer)
        )


# -- answers -----------------------------------------------------------------------------------------------------------


def test_calls_look_like_those_of_hermes() -> None:
    assert Hermes.calls == generic.CALLS


@pytest.mark.parametrize(
    ("text", "content", "calls", "defects"),
    [
        (f"Well.\n{CALL}\n{CALL}", "Well.", 2, []),
        ('<tool_call>[{"name": "now", "arguments": {}}]</tool_call>', "", 1, ["list_of_calls"]),  # as SmolLM2-1.7B
        ('{"name": "now", "arguments": {}}', "", 1, ["unmarked_call"]),
        ("<tool_call><function=now></function></tool_call>", "", 1, ["other_syntax"]),
        ("I would write <tool_call> here.", "I would write <tool_call> here.", 0, []),
    ],
)
def test_answers(text: str, content: str, calls: int, defects: list[str]) -> None:
    read = fmt_of("plain").parse(text, TOOLS)
    assert (read.content, len(read.calls), [defect.kind for defect in read.defects]) == (content, calls, defects)


def test_a_reasoning_block_stays_the_templates() -> None:
    fmt = fmt_of("reasoning")
    assert fmt.reasoning == "opened"
    read = fmt.turn([user()], TOOLS).parse(f"Hm.\n</think>\n\n{CALL}")
    assert (read.reasoning, len(read.calls)) == ("Hm.", 1)
