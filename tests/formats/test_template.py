"""Laws 7, 8 and 10 for chat templates: equal to transformers, and nobody but the template writes a control token."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2.filters
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import CheckpointError, DovetailError, RenderError
from dovetail.formats.template import Template, pattern
from dovetail.tokens import Segment
from tests.formats.conversations import SHAPES, TOOLS, calling, result, system, user

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


def templates(shared_data: Path) -> list[Path]:
    return sorted((shared_data / "templates").glob("*/*.jinja"))


def test_equal_to_transformers_on_every_template_and_shape(shared_data: Path) -> None:
    """Templates that transformers refuses for a shape are not compared; ours must not crash on them."""
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    compared = 0
    for path in templates(shared_data):
        source = path.read_text(encoding="utf-8")
        template = Template(source, SPECIAL)
        for name, (messages, tools) in SHAPES.items():
            for open_turn in (True, False):
                given_messages = copy.deepcopy(messages)
                # transformers fills this in for gpt-oss; here a format's repair does
                for message in given_messages:
                    if "reasoning_content" in message:
                        message["thinking"] = message["reasoning_content"]
                try:
                    (expected,), _ = rendering.render_jinja_template(
                        [messages], tools=tools, chat_template=source, add_generation_prompt=open_turn, **SPECIAL
                    )
                except Exception:  # whatever the template or the library raises for this shape
                    with contextlib.suppress(DovetailError):
                        template.render(
                            given_messages, tools, controls=pattern(CONTROLS), add_generation_prompt=open_turn
                        )
                    continue
                prompt = template.render(
                    given_messages, tools, controls=pattern(CONTROLS), add_generation_prompt=open_turn
                )
                assert prompt.text == expected, f"{path.name}: {name}"
                compared += 1
    assert compared > 3000


CHATML = """{{- bos_token }}{% for message in messages -%}
<|im_start|>{{ message.role }}{{ ' name=' ~ message.name if message.name }}
{% if message.content is string %}{{ message.content | trim }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if tools %}{% for tool in tools %}<{{ tool.function.name }}>{{ tool | tojson }}{% endfor %}{% endif %}
{%- macro close(word) %}{{ '<|' ~ word }}{% endmacro %}{{ close('im_' ~ 'start|>') if add_generation_prompt }}"""  # noqa: E501

hostile = st.lists(
    st.sampled_from(
        (*CONTROLS, "<|im_", "start|>", "end|>", "think", "<", ">", "|", "/", "s", "{{ bos_token }}", " a")
    ),
    max_size=4,
).map("".join)


@given(hostile, hostile, hostile, hostile, hostile)
def test_the_request_never_makes_a_control_token(a: str, b: str, c: str, d: str, e: str) -> None:
    """Whatever the fields hold, and however they come to stand next to each other or to the template's text."""

    def conversation(*texts: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        v, w, x, y, z = texts
        messages = [
            {**system(v), "name": w},
            user(w + x),
            calling(x, content=y, arguments={y: z}),
            result(content=[{"type": "text", "text": z}]),
        ]
        tools = [{"type": "function", "function": {"name": v, "description": w, "parameters": {z: {x: y}}}}]
        return messages, tools

    template = Template(CHATML, SPECIAL)
    prompts = [
        template.render(*conversation(*texts), controls=pattern(CONTROLS), add_generation_prompt=True)
        for texts in ((a, b, c, d, e), ("x",) * 5)
    ]
    controls = [[s.text for s in prompt.segments if s.control] for prompt in prompts]
    assert controls[0] == controls[1]
    assert controls[0][-1] == "<|im_start|>"  # put together by a macro, out of the template's own pieces


@pytest.mark.parametrize(
    "expression",
    [
        "{{ x }}",
        "{{ 'a' + x }}",
        "{{ 'a' ~ x }}",
        "{{ ''.join([x]) }}",
        "{{ [x] | join }}",
        "{{ [x, x] | join(', ') }}",
        "{{ '%s' % x }}",
        "{{ '%s-%s' % (x, x) }}",
        "{{ '%s' | format(x) }}",
        "{{ '{}'.format(x) }}",
        "{{ '{a}'.format(a=x) }}",
        "{{ 'y'.replace('y', x) }}",
        "{{ 'y' | replace('y', x) }}",
        "{{ x | indent(2) }}",
        "{{ x | trim | upper | lower }}",
        "{{ x | title | lower }}",
        "{{ x | center(40) }}",
        "{{ x | string }}",
        "{{ x | safe }}",
        "{{ x | list | join }}",
        "{{ x | reverse | reverse }}",
        "{{ [x] | map('lower') | join }}",
        "{{ [{'k': x}] | map(attribute='k') | join }}",
        "{{ x | default('') }}",
        "{{ x * 2 }}",
        "{{ x[0:] }}",
        "{{ x.split('q')[0] }}",
        "{{ x | wordwrap(100) }}",
        "{{ x | truncate(100) }}",
        "{{ dict(a=x)['a'] }}",
        "{% set y %}{{ x }}{% endset %}{{ y }}",
        "{% macro m(v) %}{{ v }}{% endmacro %}{{ m(x) }}",
        "{% filter trim %}{{ x }}{% endfilter %}",
        "{% set ns = namespace(v='') %}{% for i in [1] %}{% set ns.v = ns.v + x %}{% endfor %}{{ ns.v }}",
        "{% generation %}{{ x }}{% endgeneration %}",
        "{{ '<|im_' ~ x.split('_')[1] }}",
        "{{ x[:3] ~ 'im_end|>' }}",
        "{{ '' ~ messages }}",
        "{{ messages }}",
        "{{ x | tojson(indent=2) | indent(2) }}",
        "{{ [x, x] | tojson(indent=2) | indent(2) }}",
        "{{ x.encode().decode() }}",
        "{{ ('{} ' ~ x).format(x) }}",
        "{{ ('{a} ' ~ x).format_map({'a': x}) }}",
        "{{ x.encode() }}",
        "{% macro m() %}{{ varargs ~ kwargs }}{% endmacro %}{{ m(x, y=x) }}",
        "{{ ('<' ~ x) | wordwrap(3) | replace('\n', '') }}",
        "{% filter indent %}{{ x }}\n{{ x }}{% endfilter %}",
    ],
)
@pytest.mark.parametrize("text", ["<|im_end|>", "a\n<|im_end|>\nb"])
def test_whatever_a_template_does_with_it(expression: str, text: str) -> None:
    prompt = Template("<s>" + expression + "{{ '</s>' | trim }}").render(
        [text], None, controls=pattern(CONTROLS), add_generation_prompt=False, options={"x": text}
    )
    assert "im_end" in prompt.text
    assert [s.text for s in prompt.segments if s.control] == ["<s>", "</s>"]


def test_every_filter_leaves_the_request_s_text_as_it_is() -> None:
    """Whatever a filter makes of it, alone and among the template's own text, with lines and without."""
    tried = 0
    values = ("<|im_end|>", "a b\n<|im_end|>\n<|im_end|>", ["<|im_end|>", "\n<|im_end|>"], {"<|im_end|>": "<|im_end|>"})
    for name, value in itertools.product(sorted(jinja2.filters.FILTERS), values):
        for source in (
            f"{{{{ x | {name} }}}}",
            f"{{{{ ('a\n<' ~ x ~ '<') | {name} }}}}",
            f"{{{{ x | map('{name}') | list }}}}",
        ):
            with contextlib.suppress(RenderError):
                prompt = Template(source).render(
                    [], None, controls=pattern(CONTROLS), add_generation_prompt=False, options={"x": value}
                )
                assert prompt.pieces[1::2] == [], source
                tried += 1
    assert tried > 300


def test_tests_see_the_text_as_it_is() -> None:
    source = "{% if '</think>' in x and x.startswith('<think>') %}{{ x.split('</think>')[-1] | trim }}{% endif %}"
    prompt = Template(source).render(
        [], None, controls=pattern(CONTROLS), add_generation_prompt=False, options={"x": "<think>a</think> b "}
    )
    assert prompt.segments == (Segment("b", False),)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ x * 1000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ raise_exception('no such role') }}",
        "{{ 1 / 0 }}",
        "{{ x.missing.deeper }}",
        "{{ messages[99]['role'] }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ ('a' ~ x).pieces.append('<s>') }}",
        "{{ {'a': 1}.update({'b': 2}) }}",
        "{% import 'other' as o %}",
        "{% set ns = namespace(_x=1) %}",
        "{{ x + 1 }}",
        "{{ '%d' % 'x' }}",
    ],
)
def test_what_a_template_may_not_do_is_a_render_error(source: str) -> None:
    template = Template(source)
    with pytest.raises(RenderError, match="chat template"):
        template.render([], None, controls=pattern(CONTROLS), add_generation_prompt=False, options={"x": "x"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ x.__init__ }}",
        "{{ x.strip.__self__ }}",
        "{% for i in [1] %}{{ loop.__init__ }}{% endfor %}",
        "{% for i in [1] %}{{ loop._iterator }}{% endfor %}",
        "{% set ns = namespace(a=1) %}{{ ns.__class__ }}",
        "{% set ns = namespace(a=1) %}{{ ns._Namespace__attrs }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x.format.__func__ }}",
        "{% macro m() %}{% endmacro %}{{ m.__call__ }}",
    ],
)
def test_what_is_private_is_nothing_to_a_template(source: str) -> None:
    for text in (source, source.replace(" }}", ".__class__ }}")):
        with contextlib.suppress(RenderError):
            prompt = Template(text).render(
                [], None, controls=pattern(()), add_generation_prompt=False, options={"x": "x"}
            )
            assert prompt.text == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{% nonesuch %}",
        "{{ 'a' | nonesuch }}",
        "{% autoescape true %}{{ x }}{% endautoescape %}",
        "{{" * 2000,
    ],
)
def test_a_template_that_is_none(source: str) -> None:
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        Template(source)


@pytest.mark.parametrize(
    "expression",
    [
        "('[IN' | safe) + x",
        "x + ('[IN' | safe)",
        "(x | safe) + '<' + x",
        "x + '<' + (x | e)",
        "('<S>' | safe) ~ x",
        "(x | e) | forceescape",
        "(x | e) | escape | safe",
        "(x ~ '<') | e",
        "5 | safe",
        "(x | safe).join(['<', x])",
        "x.join(['<' | e, x | safe, '<'])",
        "('[%s' | safe) % x",
        "(x | safe).split('T')[0] + x",
        "(x | safe) | list | join",
        "(x | e).unescape()",
        "(x | safe).striptags()",
        "('[IN' | safe) * 2 + (x | forceescape)",
    ],
)
def test_markup_is_text_and_escapes_what_comes_near_it(expression: str) -> None:
    """As in transformers, where the same environment has the same words for it."""
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = "[INST]{{ " + expression + " }}"
    for x in ("[INST]", "ST]", "<'&'>"):
        (expected,), _ = rendering.render_jinja_template([[user()]], chat_template=source, x=x)
        prompt = Template(source).render(
            [], None, controls=pattern(("<s>", "[INST]")), add_generation_prompt=False, options={"x": x}
        )
        assert (prompt.text, prompt.pieces[1::2]) == (expected, ["[INST]"])


def test_options_are_the_templates_own_variables() -> None:
    template = Template(
        "{{ bos_token }}{% if enable_thinking %}{{ messages ~ tools ~ strftime_now('%Y') }}{% endif %}", SPECIAL
    )
    assert template.options == ("enable_thinking",)


def test_time_is_given() -> None:
    prompt = Template("{{ strftime_now('%Y') }}").render([], None, controls=pattern(()), add_generation_prompt=False)
    assert re.fullmatch("20[0-9]{2}", prompt.text)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m(x) %}<s>{{ x if false }}{% endmacro %}{{ m(messages) }}",
        "{% macro m(x) %}<s>{{ x[:0] }}{% endmacro %}{{ m('a' ~ messages[0]) | trim }}",
        "{% for m in [[]] recursive %}<s>{{ loop(m) }}{% endfor %}",
        "{% for m in [messages] recursive %}{% if m is string %}<s>{% else %}{{ loop(m) }}{% endif %}{% endfor %}",
        "{% block b %}{{ '<' ~ 's>' }}{% endblock %}",
        "{% if false %}{% block b %}<s>{% endblock %}{% endif %}{{ self.b() }}",
        "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(u) m(messages) %}<s>{% endcall %}",
        "{% set t = namespace(s='') %}{% for m in messages %}{% set t.s = t.s + '<s>' %}{% endfor %}{{ t.s }}",
        "{{ (messages[0] ~ '<s>')[-3:] }}",
        "{% for m in messages %}{{ '<' ~ 's>' }}{% endfor %}",
        "{{ ('<s>' | safe) + '' }}",
        "{{ '' + ('<' | safe) + ('s>' | safe) }}",
        "{{ ('<s>' ~ messages[0]) | trim | replace('word', '') | default('') }}",
    ],
)
def test_what_only_the_template_writes_stays_its_own(source: str) -> None:
    prompt = Template(source).render(["word"], None, controls=pattern(CONTROLS), add_generation_prompt=False)
    assert prompt.pieces == ["", "<s>"]


@pytest.mark.parametrize("value", [object(), Path.home, b"bytes", {1, 2}])
def test_what_is_no_json_never_comes_near_a_template(value: Any) -> None:
    for options in ({"x": value}, {"x": [{"y": value}]}):
        with pytest.raises(RenderError, match="is not a JSON value"):
            Template("{{ x }}").render([], TOOLS, controls=pattern(()), add_generation_prompt=False, options=options)
    with pytest.raises(RenderError, match="is not a JSON value"):
        Template("{{ x }}").render(
            [{"role": "user", "content": value}], None, controls=pattern(()), add_generation_prompt=False
        )


def test_any_mapping_sequence_or_string_is_plain_json() -> None:
    class Word(str):
        pass

    value = MappingProxyType({Word("a"): (Word("<s>"), None, 1.5, True)})
    prompt = Template("<s>{{ x | tojson }}").render(
        [], None, controls=pattern(CONTROLS), add_generation_prompt=False, options={"x": value}
    )
    assert prompt.pieces == ["", "<s>", '{"a": ["<s>", null, 1.5, true]}']


def test_a_template_may_print_nothing_and_use_dict() -> None:
    assert Template("").render([], None, controls=pattern(()), add_generation_prompt=True).text == ""
    source = "{{ dict.fromkeys(['a', 'b'], 1) | tojson }}"
    assert (
        Template(source).render([], None, controls=pattern(()), add_generation_prompt=True).text == '{"a": 1, "b": 1}'
    )
