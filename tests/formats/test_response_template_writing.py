"""Response templates that Dovetail writes, and whether transformers' parser reads the answers in a model's prompts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.errors import RenderError
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.declared.declared import JsonCalls
from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.proof import TOOLS
from dovetail.formats.derived.template import Template
from dovetail.formats.families.command_a import CommandA
from dovetail.formats.families.gemma4 import Gemma4
from dovetail.formats.families.lfm2 import Lfm2
from dovetail.formats.families.minimax_m2 import MiniMaxM2
from dovetail.formats.families.muse import Muse
from dovetail.formats.families.pythonic import Pythonic
from dovetail.formats.response_templates import roundtrip as roundtrips
from dovetail.formats.response_templates import writing
from dovetail.formats.response_templates.anchors import backtracking
from dovetail.formats.response_templates.roundtrip import Answers, Result, Unparsed, roundtrip
from dovetail.formats.response_templates.writing import Inexpressible, written
from tests.examples import slow_but
from tests.formats import chat_templates, response_templates
from tests.formats.chat_templates import HERMES, PLAIN, QWEN3, SMALL_CONTROLS
from tests.formats.response_templates import QWEN, SMOLLM, spec
from tests.formats.template_list import parse
from tests.formats.test_differencing import CONTROLS, LISTED, listed, tagged, template
from tests.formats.test_response_templates import LISTED_SPEC

ENDS = ("<|im_end|>",)
QWEN_CODER = tagged(
    "{{- '<parameter=' + k + '>\n' + v + '\n</parameter>\n' }}",
    call=("<tool_call>\\n<function=", ">\\n@</function>\\n</tool_call>"),
    between="\\n",
)
KEY_TAGS = tagged(
    "{{- '<|key|>' + k + '<|/key|><|value|>' + v + '<|/value|>\n' }}",
    call=("<|call|>", "<|sep|>\\n@<|/call|>\\n"),
    around=("<|calls|>\\n", "<|/calls|>"),
)
NAMED = listed(
    """{{- '<fn=' + c.name + '>' }}{{- c.arguments | tojson }}{{- '</fn>' }}""",
    around=("<|calls|>", "<|/calls|>"),
    between="",
)
NESTED = listed(
    """{{- '<|call|>{"function": {"name": "' + c.name + '", "arguments": ' }}"""
    """{{- c.arguments | tojson }}{{- '}}<|/call|>' }}""",
    around=("", ""),
    between="",
)
KEYED = listed("""{{- '{"' + c.name + '": ' }}{{- c.arguments | tojson }}{{- '}' }}""")
BARE = template(
    """{{- '[' }}{%- for t in m.tool_calls %}{%- set c = t.function %}"""
    """{{- '{"name": "' + c.name + '", "arguments": ' }}"""
    """{{- c.arguments | tojson }}{{- '}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' }}"""
).replace("{{- m.content or '' }}", "{{- m.content if not m.tool_calls else '' }}")
ONE_OBJECT = (
    BARE.replace("{{- '[' }}", "{%- if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}")
    .replace("{{- ']' }}", "")
    .replace('"arguments"', '"parameters"')
)
_VALUE = (
    "{% if v is iterable %}{{- v | tojson }}{% elif v is boolean %}{{- 'True' if v else 'False' }}{% else %}{{- v }}"
    "{% endif %}"
)
_COMMA = "{%- if not loop.last %}{{- ', ' }}{% endif %}"
PYTHON = template(
    "{{- '<|tool_call_start|>[' }}{%- for t in m.tool_calls %}{%- set c = t.function %}{{- c.name + '(' }}"
    "{%- for k, v in c.arguments.items() %}{{- k + '=' }}"
    + _VALUE
    + _COMMA
    + "{% endfor %}{{- ')' }}"
    + _COMMA
    + "{% endfor %}"
    "{{- ']<|tool_call_end|>' }}"
)
LONE = QWEN3.replace(
    "{{ message.content }}",
    "{% if message.role == 'assistant' and not message.reasoning_content %}</think>{% endif %}{{ message.content }}",
)


def of(source: str, *controls: str) -> JinjaFormat:
    return chat_templates.of_source(source, (*CONTROLS, *controls), ends=ENDS, native=False, generic_tools=False)


def tried(fmt: Format, response: Any) -> Result:
    pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")
    return roundtrip(fmt, functools.partial(parse, response))


def best(fmt: Format) -> tuple[Any, Result]:
    return min(((each, tried(fmt, each)) for each in written(fmt)), key=lambda pair: pair[1].differing)


# -- written ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "controls"),
    [
        pytest.param(HERMES, SMALL_CONTROLS, marks=pytest.mark.slow),
        (QWEN3, SMALL_CONTROLS),
        pytest.param(LISTED, (), marks=pytest.mark.slow),
        (QWEN_CODER, ()),
        (KEY_TAGS, ()),
        (NAMED, ()),
        (NESTED, ("<|nested|>",)),
    ],
)
def test_what_is_written_is_read_by_both(source: str, controls: tuple[str, ...]) -> None:
    response, result = best(of(source, *controls))
    assert (result.differing, result.difference) == (0, None) and result.calling
    assert backtracking(response) == ""
    fmt = chat_templates.of_source(
        source, (*CONTROLS, *controls), ends=ENDS, response_template=response, native=False, generic_tools=False
    )
    if source is not NESTED:  # no declaration has keys of keys
        assert (fmt.family_name, fmt.refusal) == ("response_template", "")


@pytest.mark.parametrize(("source", "controls"), [(BARE, ()), (ONE_OBJECT, ()), (LONE, SMALL_CONTROLS)])
def test_what_is_written_is_read_by_transformers(source: str, controls: tuple[str, ...]) -> None:
    assert best(of(source, *controls))[1].differing == 0


@pytest.mark.parametrize(
    "name",
    slow_but(
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "google-gemma-4-31B-it", "MiniMax-M2"),
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    ),
)
def test_published_templates(name: str, shared_data: Path) -> None:
    source = (shared_data / f"templates/llama.cpp/{name}.jinja").read_text(encoding="utf-8")
    fmt = jinja(
        Template(source, chat_templates.SPECIAL), chat_templates.controls(source), [CommandA(), Gemma4(), MiniMaxM2()]
    )
    assert best(fmt)[1].differing == 0


def test_python_calls_but_for_large_numbers() -> None:
    controls = ("<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>")
    fmt = jinja(Template(PYTHON), controls, [Lfm2()])
    difference = best(fmt)[1].difference
    called = {"name": "find-place", "arguments": {"days": 12345678901234567890}}
    assert difference is not None and difference.sent == [called]
    unmarked = PYTHON.replace("<|tool_call_start|>", "").replace("<|tool_call_end|>", "")
    assert fmt.family_name == "lfm2"
    fmt = jinja(Template(unmarked), (*controls, "<|python_start|>", "<|python_end|>"), [Pythonic()])
    assert fmt.family_name == "pythonic"
    assert r"<\|python_start\|>|^" in next(written(fmt))["fields"]["tool_calls"]["open_pattern"]


@pytest.mark.parametrize("name", ["kimi_k25", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"])
def test_families_without_a_chat_template(name: str) -> None:
    assert best(dovetail.format(name))[1].differing == 0


def test_reasoning_as_a_prompt_shows_it(shared_data: Path) -> None:
    """Its markup has a blank in it, so that the family reads it otherwise than by tags."""
    source = (shared_data / "templates/vllm/tool_chat_template_muse_glimmer.jinja").read_text(encoding="utf-8")
    response, result = best(jinja(Template(source), chat_templates.controls(source), [Muse()]))
    assert response["fields"]["thinking"]["open"] == "to=self<|message|>"
    assert result.differing == 0


def test_bare_keys() -> None:
    calls = writing._calls(dovetail.format("gemma4").calls, "(?:<turn\\|>)", "")  # type: ignore[attr-defined]
    assert calls["content_args"] == {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]}


def test_where_an_answer_begins() -> None:
    """Text that only stands before an open answer is no part of that, and a template may refuse results."""
    steps = LISTED.replace("assistant\n' }}", "assistant\nSteps:\n' }}")
    assert next(written(of(steps)))["start_anchor"] == "<|im_start|>assistant\n"
    refusing = "{%- for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    assert next(written(of(refusing + LISTED)))["start_anchor"] == "<|im_start|>assistant\n"
    assert next(written(of("{% if tools %}{% endif %}" + LISTED.replace("<|im_start|>", ""))))["start_anchor"]


def test_what_no_response_template_expresses() -> None:
    with pytest.raises(Inexpressible, match="a call's name is the key of its object"):
        next(written(of(KEYED)))
    with pytest.raises(Inexpressible, match="no declaration has the layout"):
        next(written(of("{{ tools | tojson }}" + PLAIN)))
    nested = dovetail.format("minimax_m3")
    with pytest.raises(Inexpressible, match="no kind of content has the layout of NestedTagCalls"):
        writing._calls(nested.calls, "", "")  # type: ignore[attr-defined]
    with pytest.raises(Inexpressible, match="more than a JSON object"):
        writing._calls(JsonCalls("<a>{call}</a>", 'tool {"name": "{name}", "arguments": {arguments}}'), "", "")
    with pytest.raises(Inexpressible, match="neither name nor arguments as members"):
        writing._calls(JsonCalls("<a>{call}</a>", '{"call": "tool {name}", "arguments": {arguments}}'), "", "")


# -- proved -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_documented_response_template_that_loses_content(shared_data: Path) -> None:
    """The newline between two calls is a region of its own, whose content replaces the content before the calls."""
    result = tried(chat_templates.of(shared_data / "templates/vllm/qwen3.jinja"), SMOLLM)
    found = result.difference
    assert found is not None and 0 < result.differing < result.messages
    assert (found.part, found.sent, found.read) == ("content", "3", "")
    assert [call["function"]["arguments"] for call in found.message["tool_calls"]] == ["{}", "{}"]


def test_the_value_that_breaks_it() -> None:
    response = spec(**LISTED_SPEC["fields"], content={"close": "<|im_end|>"})
    assert tried(of(LISTED), response).differing == 0

    def no_tabs(text: str, prompt: str) -> Any:
        if "\\t" in text:
            raise Unparsed("a tab")
        return parse(response, text, prompt)

    difference = roundtrip(of(LISTED), no_tabs).difference
    assert difference is not None and difference.read == "it cannot be read: a tab"
    values = [value for call in difference.sent for value in call["arguments"].values()]
    assert len(difference.sent) == 1 and values in (["\t"], [["\t"]], [{"name": "\t"}])


def test_other_shapes_of_calls() -> None:
    def shouting(text: str, prompt: str) -> Any:
        return {"content": text.partition("<|")[0], "tool_calls": [{"function": "loud"}] if "[{" in text else []}

    difference = roundtrip(of(LISTED), shouting).difference
    assert difference is not None and difference.part in ("content", "tool_calls")
    difference = roundtrip(of(LISTED), lambda text, prompt: {"content": "x"}).difference
    assert difference is not None and len(difference.sent) == 1
    assert roundtrips._called({"function": {"name": "a", "arguments": '{"b": 1}'}}) == {
        "name": "a",
        "arguments": {"b": 1},
    }
    assert roundtrips._text(3) == 3


def test_messages_that_a_chat_template_refuses_are_left_out() -> None:
    some = (
        "{% for t in m.tool_calls %}{% if not t.function.arguments %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    )
    fmt = of(f"{{%- for m in messages %}}{some}{{% endfor %}}{LISTED}")

    def calls_none(text: str, prompt: str) -> Any:
        return {"content": text.partition("<|")[0]}

    result = roundtrip(fmt, calls_none)
    assert 0 < result.calling < result.messages < roundtrips.MESSAGES
    assert result.difference is not None and len(result.difference.sent) == 1
    with pytest.raises(RenderError, match="never"):
        roundtrip(of("{% if messages | length > 1 %}{{ raise_exception('never') }}{% endif %}" + PLAIN), calls_none)


def test_a_chat_template_that_shows_no_calls() -> None:
    fmt = of("{{ tools | tojson }}" + PLAIN)
    result = tried(fmt, spec(content={"close": "<|im_end|>"}, tool_calls=QWEN["fields"]["tool_calls"]))
    assert (result.calling, result.differing) == (0, 0)


def test_reasoning_that_a_chat_template_refuses_beside_calls() -> None:
    refusing = "{% if message.tool_calls and message.reasoning_content %}{{ raise_exception('both') }}{% endif %}"
    answers = Answers(
        of(
            QWEN3.replace("<|im_start|>{{ message.role }}", refusing + "<|im_start|>{{ message.role }}"),
            *SMALL_CONTROLS,
        )
    )
    call = Call("call00000", TOOLS[0]["function"]["name"], "{}")
    assert answers.shown(Message("", "They ask.", (call,))).reasoning == ""
    assert answers.shown(Message("Yes.", "They ask.")).reasoning == "They ask."


def test_patterns_that_may_take_exponential_time_are_named() -> None:
    assert backtracking(response_templates.COHERE) == backtracking(None) == ""
    assert backtracking({"fields": [{"tag_pattern": "(a*)*"}]}).startswith("tag_pattern may take exponential time")
