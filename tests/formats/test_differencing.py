"""Formats that are derived from chat templates by differencing, and templates from which none may be derived."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.events import Call, Message
from dovetail.formats.declared.declared import Declaration, JsonCalls, TagCalls
from dovetail.formats.declared.named_calls import KeyedCalls, NamedCalls
from dovetail.formats.derived import differencing, proof
from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.sample_answers import SampleAnswers
from dovetail.formats.derived.template import Template
from dovetail.formats.registry import FAMILIES
from dovetail.grammar import Concat, ControlToken, FreeText, Maybe
from dovetail.tokens import Prompt, Segment
from tests.examples import slow_but
from tests.formats import chat_templates
from tests.formats.conversations import TOOLS

CONTROLS = (
    *("<|im_start|>", "<|im_end|>", "<|calls|>", "<|/calls|>", "<|think|>", "<|/think|>"),
    *("<|call|>", "<|sep|>", "<|/call|>", "<|key|>", "<|/key|>", "<|value|>", "<|/value|>"),
)
_OPEN = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{{- m.content or '' }}"
_CLOSE = "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"


def template(calls: str) -> str:
    """A template of which `calls` writes the calls of the message `m`."""
    return f"{_OPEN}{{%- if m.tool_calls %}}{calls}{{%- endif %}}{_CLOSE}"


def listed(call: str, *, around: tuple[str, str] = ("<|calls|>[", "]<|/calls|>"), between: str = ", ") -> str:
    """A template of which `call` writes the call `c`."""
    return template(
        f"{{{{- '{around[0]}' }}}}{{%- for t in m.tool_calls %}}{{%- set c = t.function %}}{call}"
        f"{{%- if not loop.last %}}{{{{- '{between}' }}}}{{%- endif %}}{{%- endfor %}}{{{{- '{around[1]}' }}}}"
    )


def tagged(parameter: str, *, call: tuple[str, str], around: tuple[str, str] = ("", ""), between: str = "") -> str:
    """A template of which `parameter` writes a key `k` and a value `v`, which is text."""
    each = f"{{{{- '{call[0]}' + c.name + '{call[1].split('@')[0]}' }}}}{{%- for k, x in c.arguments.items() %}}"
    each += "{%- set v = x if x is string else x | tojson %}" + parameter + "{%- endfor %}"
    return listed(each + f"{{{{- '{call[1].split('@')[1]}' }}}}", around=around, between=between)


CALLED = (Call("call_0", "now", "{}"),)
NAMED = """{{- '{"tool": "' + c.name + '", "input": ' }}{{- c.arguments | tojson }}{{- '}' }}"""
LISTED = listed(NAMED)


def derived(source: str, controls: tuple[str, ...] = CONTROLS) -> JinjaFormat:
    return jinja(Template(source), controls, [family() for family in FAMILIES.values()], ends=("<|im_end|>",))


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        (
            listed(NAMED, around=("\\nAction:\\n```json\\n[\\n", "\\n]```")),
            JsonCalls("\nAction:\n```json\n[\n{calls}\n]```", '{"tool": "{name}", "input": {arguments}}', ", "),
        ),
        (LISTED, JsonCalls("<|calls|>[{calls}]<|/calls|>", '{"tool": "{name}", "input": {arguments}}', ", ")),
        (  # the first brace begins no JSON
            listed(NAMED, around=("{<|calls|>", "<|/calls|>")),
            JsonCalls("{<|calls|>{calls}<|/calls|>", '{"tool": "{name}", "input": {arguments}}', ", "),
        ),
        (
            listed(NAMED, around=("\\n<|calls|>", "<|/calls|>"), between="<|/calls|>\\n<|calls|>"),
            JsonCalls("\n<|calls|>{call}<|/calls|>", '{"tool": "{name}", "input": {arguments}}', ""),
        ),
        (
            listed("""{{- '{"' + c.name + '": ' }}{{- c.arguments | tojson }}{{- '}' }}"""),
            KeyedCalls("<|calls|>[{calls}]<|/calls|>", '{"{name}": {arguments}}', ", "),
        ),
        (
            listed(
                """{{- '<fn=' + c.name + '>' }}{{- c.arguments | tojson }}{{- '</fn>' }}""",
                around=("<|calls|>", "<|/calls|>"),
                between="",
            ),
            NamedCalls("<|calls|>{calls}<|/calls|>", "<fn={name}>{arguments}</fn>"),
        ),
        (
            listed(
                """{{- '{"n": "' + loop.index0 | string + '", "tool": "' + c.name + '", "input": ' }}"""
                """{{- c.arguments | tojson }}{{- '}' }}"""
            ),
            JsonCalls(
                "<|calls|>[{calls}]<|/calls|>",
                '{"n": "{index}", "tool": "{name}", "input": {arguments}}',
                ", ",
            ),
        ),
        (
            tagged(
                "{{- '<parameter=' + k + '>' + v + '</parameter>' }}",
                call=("<|calls|><function=", ">\\n@</function>\\n<|/calls|>"),
                between="\\n",
            ),
            TagCalls(
                "<|calls|>{call}<|/calls|>",
                "<function={name}>\n{parameters}</function>\n",
                "<parameter={key}>{value}</parameter>",
                "\n",
            ),
        ),
        (
            tagged(
                "{{- '<p name=\"' + k + '\">' + v + '</p>\n' }}",
                call=('<invoke name="', '">\\n@</invoke>\\n'),
                around=("<|calls|>\\n", "<|/calls|>"),
            ),
            TagCalls(
                "<|calls|>\n{calls}<|/calls|>",
                '<invoke name="{name}">\n{parameters}</invoke>\n',
                '<p name="{key}">{value}</p>\n',
            ),
        ),
        (
            tagged(
                "{{- '<|key|>' + k + '<|/key|><|value|>' + v + '<|/value|>\n' }}",
                call=("<|call|>", "<|sep|>\\n@<|/call|>\\n"),
                around=("<|calls|>\\n", "<|/calls|>"),
            ),
            TagCalls(
                "<|calls|>\n{calls}<|/calls|>",
                "<|call|>{name}<|sep|>\n{parameters}<|/call|>\n",
                "<|key|>{key}<|/key|><|value|>{value}<|/value|>\n",
            ),
        ),
    ],
)
def test_what_is_derived(source: str, calls: Declaration) -> None:
    fmt = derived(source)
    assert fmt.derived.derivation.reason == ""
    assert (fmt.family_name, fmt.reads_calls) == ("derived", True)
    layout = fmt.derived.derivation.layout
    assert layout is not None and layout.calls == calls
    message = Message("Yes.", "", (Call("call_0", "get_weather", '{"city": "é"}'), Call("call_1", "now", "{}")))
    read = fmt.parse(fmt.write(message).text, TOOLS)
    assert (read.content, read.defects) == ("Yes.", ())
    assert [call[1:] for call in map(msgspec.structs.astuple, read.calls)] == [
        call[1:] for call in map(msgspec.structs.astuple, message.calls)
    ]
    assert fmt.grammar(TOOLS) is not None
    assert fmt.verdict == proof.Verdict()


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        (
            listed(
                """{{- '<fn=' + c.name + '>' }}{{- c.arguments | tojson }}{{- '</fn>' }}""",
                around=("<|calls|>", "<|/calls|>"),
            ),
            NamedCalls("{call}", "<|calls|><fn={name}>{arguments}</fn><|/calls|>"),
        ),
        (
            tagged(
                "{{- '<parameter=' + k + '>' + v + '</parameter>' }}",
                call=("<|calls|><function=", ">@</function><|/calls|>"),
            ),
            TagCalls(
                "<|calls|>{call}<|/calls|>",
                "<function={name}>{parameters}</function>",
                "<parameter={key}>{value}</parameter>",
            ),
        ),
    ],
)
def test_what_is_derived_from_a_template_that_shows_one_call(source: str, calls: Declaration) -> None:
    fmt = derived(source.replace("in m.tool_calls", "in m.tool_calls[:1]"))
    layout = fmt.derived.derivation.layout
    assert layout is not None and layout.calls == calls
    assert fmt.verdict == proof.Verdict()


def test_a_last_answer_that_stays_inside_reasoning_is_read_as_its_history_shows_it() -> None:
    """As Nemotron Nano 2's template: it opens reasoning before the last answer, and closes it nowhere."""
    opened = "{%- if m.role == 'assistant' and loop.last %}{{- '<think>\n' }}{%- endif %}{{- m.content"
    source = LISTED.replace("{{- m.content", opened).replace("assistant\n' }}", "assistant\n<think>\n' }}")
    fmt = derived(source + "{#- </think> #}", (*CONTROLS, "<think>", "</think>"))
    assert (fmt.family_name, fmt.reasoning, fmt.verdict) == ("derived", "opened", proof.Verdict())
    read = fmt.parse(f"So.\n</think>\n\nYes.{fmt.write(Message('', '', CALLED)).text}", TOOLS, thinking=True)
    assert (read.reasoning, read.content, len(read.calls)) == ("So.", "Yes.", 1)


def test_a_turn_with_calls_that_has_no_end_ends_where_the_next_begins() -> None:
    """As Command R+'s template, whose prompts end in an instruction."""
    instructed = _CLOSE.replace("{{- '<|im_end|>\n' }}", "{%- if not m.tool_calls %}{{- '<|im_end|>\n' }}{%- endif %}")
    instructed = instructed.replace("{%- endfor %}", "{%- endfor %}{{- '<|im_start|>system\nAct.<|im_end|>\n' }}")
    fmt = derived(LISTED.replace(_CLOSE, instructed))
    layout = fmt.derived.derivation.layout
    assert layout is not None
    assert layout.calls == JsonCalls("<|calls|>[{calls}]<|/calls|>", '{"tool": "{name}", "input": {arguments}}', ", ")
    assert fmt.write(Message("", "", CALLED)).text.endswith("]<|/calls|><|im_end|>")


def test_markers_that_the_tokenizer_lacks_are_read_in_text() -> None:
    """The proof reads as the server does: what is no token is found in text, the end of reasoning too."""
    fmt = derived(LISTED, ("<|im_start|>", "<|im_end|>"))
    assert (fmt.family_name, fmt.verdict) == ("derived", proof.Verdict())
    thinking = _CLOSE.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    source = LISTED.replace(_CLOSE, thinking).replace(
        "{{- m.content", "{%- if m.role == 'assistant' %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- m.content"
    )
    fmt = derived(source, ("<|im_start|>", "<|im_end|>"))
    assert (fmt.family_name, fmt.reasoning, fmt.verdict) == ("derived", "opened", proof.Verdict())


def test_an_opener_of_reasoning_that_the_tokenizer_lacks_is_free_text_before_the_token_that_ends_it() -> None:
    shown = "{%- if m.reasoning_content %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    fmt = derived(LISTED.replace("{{- m.content", shown + "{{- m.content"), (*CONTROLS, "</think>"))
    assert (fmt.family_name, fmt.reasoning, fmt.verdict) == ("derived", "written", proof.Verdict())
    grammar = fmt.grammar(TOOLS)
    assert grammar is not None and isinstance(grammar.root, Concat)
    assert grammar.root.items[0] == Maybe(Concat((FreeText(), ControlToken("</think>"))))


def test_the_format_of_a_template_is_made_once() -> None:
    fmt = derived(LISTED)
    assert derived(LISTED) is fmt
    assert derived(LISTED + " ") is not fmt
    assert derived(LISTED, (*CONTROLS, "<|more|>")) is not fmt
    special = Template(LISTED, {"bos_token": "<|calls|>"})
    assert jinja(special, CONTROLS, [family() for family in FAMILIES.values()], ends=("<|im_end|>",)) is not fmt


HERMES = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
_AS_HERMES = """{{- '{"name": "' + c.name + '", "arguments": ' }}{{- c.arguments | tojson }}{{- '}' }}"""


def test_a_family_that_lays_out_calls_otherwise_reads_them_only() -> None:
    """It writes, and allows, what the template writes; and it reads what the family knows besides."""
    fmt = derived(listed(_AS_HERMES, around=("<tool_call>", "</tool_call>"), between="</tool_call><tool_call>"), HERMES)
    message = Message("Yes.", "", (Call("call_0", "now", "{}"),) * 2)
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert (fmt.family_name, fmt.write(message).text) == ("hermes", f"Yes.{call * 2}<|im_end|>")
    assert fmt.verdict == proof.Verdict()
    own = FAMILIES["hermes"]().write(message).text
    assert own != fmt.write(message).text
    assert [call.name for call in fmt.parse(own, TOOLS).calls] == ["now", "now"]


def test_ids_that_a_template_shows_are_not_written_by_a_family_without_them() -> None:
    source = listed(
        _AS_HERMES.replace("{{- '}' }}", """{{- ', "id": "' + t.id + '"}' }}"""), around=("[TOOL_CALLS][", "]")
    )
    fmt = derived(source, ("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]"))
    assert (fmt.family_name, fmt.derived.shows_ids) == ("mistral", True)
    assert '"id"' not in fmt.write(Message("", "", (Call("call00000", "now", "{}"),))).text


@pytest.mark.parametrize(
    ("items", "order"),
    [
        ("c.arguments.items()", ["b", "C", "a"]),
        ("c.arguments | dictsort", ["a", "b", "C"]),
        ("c.arguments | dictsort(case_sensitive=true)", ["C", "a", "b"]),
    ],
)
def test_the_grammar_orders_keys_as_the_template_does(items: str, order: list[str]) -> None:
    source = tagged(
        "{{- '<parameter=' + k + '>' + v + '</parameter>' }}", call=("<|calls|><function=", ">@</function><|/calls|>")
    ).replace("c.arguments.items()", items)
    fmt = derived(source)
    assert list(fmt._family.shown_order(dict.fromkeys("bCa"))) == order
    assert fmt.verdict == proof.Verdict()


def test_more_random_messages_agree() -> None:
    fmt = derived(LISTED)
    assert proof.verdict(fmt, fmt._templates.probe, True, True, messages=100) == proof.Verdict()


#: Templates of native families, which say what differencing has to derive.
ORACLES = (
    *("Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "MiMo-VL", "ibm-granite-granite-4.0"),
    *("Qwen3-Coder", "GLM-4.7-Flash", "MiniMax-M2", "ByteDance-Seed-OSS"),
)


@pytest.mark.parametrize("name", ORACLES)
def test_a_native_declaration_is_derived_from_its_template(name: str, shared_data: Path) -> None:
    path = shared_data / f"templates/llama.cpp/{name}.jinja"
    source = path.read_text(encoding="utf-8")
    fmt = jinja(Template(source, chat_templates.SPECIAL), chat_templates.controls(source), [], ends=("</s>",))
    native = FAMILIES[chat_templates.of(path).family_name]()
    assert fmt.family_name == "derived"
    layout = fmt.derived.derivation.layout
    assert layout is not None
    shown: Any = native.calls  # type: ignore[attr-defined]
    assert vars(layout.calls) | {"after_content": ""} == vars(shown) | {"after_content": ""}


# -- templates from which nothing is derived --------------------------------------------------------------------------

REFUSES_QUOTES = (
    """{%- for m in messages if '"' in (m.content or '') %}{{ raise_exception('no quotes') }}{%- endfor %}"""
)
PARAMETER = "{{- '<p=' + k + '>' + v + '</p>' }}"
_LIE = '{{- \'<|calls|>[{"tool": "ping", "input": {}}]<|/calls|>\' }}'


@pytest.mark.parametrize(("shown", "family"), [("", "mistral"), ("[:-4]", "plain")])
def test_a_family_reads_the_arguments_that_a_template_shows_as_a_whole_only(shown: str, family: str) -> None:
    called = f"{{{{- t.function.name + '[ARGS]' + (t.function.arguments | tojson){shown} }}}}"
    source = template(f"{{{{- '[TOOL_CALLS]' }}}}{{%- for t in m.tool_calls %}}{called}{{%- endfor %}}")
    controls = ("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]")
    assert derived(source, controls).family_name == family


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (template("{{- tools | tojson }}"), "the chat template shows no calls"),
        (REFUSES_QUOTES + LISTED, "the chat template refuses this conversation: no quotes"),
        (_OPEN + _LIE + _CLOSE, "the chat template shows no calls"),
        (LISTED.replace("{{- m.content", _LIE + "{{- m.content"), "one of its markers begins like another or is empty"),
        (
            LISTED.replace("<|calls|>[", "<|im_end|>["),
            "Derived.calls: '<|im_end|>' ends a turn, so that it cannot stand",
        ),
        (LISTED.replace("c.arguments | tojson", "'{}'"), "the chat template shows no calls"),
        (LISTED.replace("c.arguments | tojson", "c.arguments.values() | join(' ')"), "what it writes is not made of"),
        (LISTED.replace("c.name", "c.name | upper"), "the chat template shows no calls"),
        (LISTED.replace("c.arguments | tojson", "c.arguments | tojson | replace('Paris', 'Rome')"), "read as"),
        (tagged(PARAMETER, call=("call ", ":@")), "nothing surrounds its calls, whose parameters are tags"),
        (
            tagged(PARAMETER, call=("<c>", "@</c>")).replace("c.name", "c.name + c.name"),
            "neither JSON arguments nor a tag",
        ),
    ],
)
def test_nothing_is_derived(source: str, reason: str) -> None:
    fmt = derived(source)
    assert (fmt.family_name, fmt.reads_calls) == ("plain", False)
    assert reason in fmt.derived.derivation.reason
    assert json.dumps(fmt.derived.derivation.reason)


# -- templates that mean harm, or err ---------------------------------------------------------------------------------

_GROWING = "{%- set n = namespace(x='aaaaaaaaaa') %}{%- for i in range(60) %}{%- set n.x = GROWN %}{%- endfor %}"
_MACRO = "{%- macro f(n) %}{%- if n %}{{ f(n - 1) }}{{ f(n - 1) }}{%- endif %}{%- endmacro %}{{ f(60) }}"
HARMFUL = {
    "loops": "{%- for i in range(100000) %}{%- for j in range(100000) %}{%- endfor %}{%- endfor %}",
    "calls itself": _MACRO,
    "recurses for ever": "{%- macro f() %}{{ f() }}{%- endmacro %}{{ f() }}",
    "doubles": _GROWING.replace("GROWN", "n.x ~ n.x"),
    "adds": _GROWING.replace("GROWN", "n.x + n.x"),
    "joins": _GROWING.replace("GROWN", "n.x.join([n.x, n.x, n.x])"),
    "joins by a filter": _GROWING.replace("GROWN", "[n.x, n.x] | join(n.x)"),
    "replaces": _GROWING.replace("GROWN", "n.x | replace('a', 'aaaa')"),
    "replaces by a method": _GROWING.replace("GROWN", "n.x.replace('a', 'aaaa')"),
    "multiplies": "{%- set x = 'a' * 1000000000 %}",
    "multiplies a list": "{%- set x = 1000000000 * [1] %}",
    "squares": "{%- set n = namespace(x=999999) %}{%- for i in range(60) %}{%- set n.x = n.x * n.x %}{%- endfor %}",
    "raises": "{%- set x = 9 ** 999999999 %}",
    "pads": "{%- set x = 'a' | center(1000000000) %}",
    "pads by a method": "{%- set x = 'a'.ljust(1000000000) %}",
    "formats": "{%- set x = '%1000000000d' % 1 %}",
    "formats by a filter": "{%- set x = '%1000000000d' | format(1) %}",
    "formats by a method": "{%- set x = '{:>1000000000}'.format(1) %}",
    "indents": "{%- set x = [1] | tojson(indent=1000000000) %}",
    "prints": "{%- set x %}{%- for i in range(1000) %}{{ 'a' * 100000 }}{%- endfor %}{%- endset %}",
    "invents": "{{ lipsum(n=1000000) }}",
}


#: Every harm is tried; these are one of each kind: steps, memory by a growing text, one operation that is too large.
_QUICK = ("loops", "calls itself", "doubles", "joins by a filter", "multiplies", "squares", "pads", "formats", "prints")


@pytest.mark.parametrize("harm", slow_but(HARMFUL, *_QUICK))
def test_a_harmful_template_is_plain_in_bounded_memory(harm: str) -> None:
    source = HARMFUL[harm] + LISTED
    tracemalloc.start()
    try:
        fmt = derived(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (fmt.family_name, fmt.reads_calls) == ("plain", False)
    assert fmt.derived.derivation.reason.startswith("the chat template ")
    assert "shows no calls" not in fmt.derived.derivation.reason
    assert peak < 64 * 2**20
    assert fmt._templates._probe_passes >= 0


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("{{- '<|calls|>' if strftime_now('%m') == '03' else '<|think|>' }}", "depends on the date"),
        ("{{- ['<|calls|>', '<|think|>'] | random }}", "draws random words"),
        ("{{- '<|calls|>' }}{{- lipsum(n=1) }}", "draws random words"),
    ],
)
def test_calls_that_are_not_always_the_same(marker: str, reason: str) -> None:
    fmt = derived(LISTED.replace("{{- '<|calls|>[' }}", marker + "{{- '[' }}"))
    assert (fmt.family_name, fmt.reads_calls) == ("plain", False)
    assert reason in fmt.derived.derivation.reason


def test_a_date_outside_of_calls_does_no_harm() -> None:
    assert derived("{{- strftime_now('%Y-%m-%d') }}" + LISTED).family_name == "derived"


def test_calls_that_differ_from_one_rendering_to_the_next() -> None:
    """The sandbox gives a template no state, so the renderer is made to forget."""
    fmt = derived(LISTED)
    found = fmt.derived.derivation.layout
    assert found is not None
    rendered = itertools.count()

    def unsteady(*arguments: Any, **options: Any) -> Prompt:
        prompt = fmt._templates.probe(*arguments, **options)
        return Prompt([Segment(prompt.text.replace('"tool"', f'"tool_{next(rendered)}"'), False)])

    samples = SampleAnswers(fmt._templates.probe, CONTROLS, dict, str, ("<|im_end|>",))
    assert differencing._unsteadiness(samples, samples.render, found, both=True) == ""
    assert "from one time" in differencing._unsteadiness(
        samples.rendered_by(unsteady), samples.render, found, both=True
    )
