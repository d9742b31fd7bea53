"""Law 8 for chat templates: only the template writes control tokens; and the limits of its sandbox.

That prompts equal those of transformers is tested in test_jinja.py.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2.filters
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import CheckpointError, RenderError
from dovetail.formats.derived.template import Template, pattern
from dovetail.tokens import Prompt, Segment
from tests.formats.conversations import calling, result, system, user

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


def rendered(source: str, messages: Any = (), controls: Iterable[str] = CONTROLS, **options: Any) -> Prompt:
    return Template(source).render(
        list(messages), None, controls=pattern(controls), add_generation_prompt=False, options=options
    )


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
    """For any text in any field, next to other fields or to the template's own text."""

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
    assert controls[0][-1] == "<|im_start|>"  # a macro builds it from pieces of the template


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
def test_no_expression_makes_a_control_token(expression: str, text: str) -> None:
    prompt = rendered("<s>" + expression + "{{ '</s>' | trim }}", [text], x=text)
    assert "im_end" in prompt.text
    assert [s.text for s in prompt.segments if s.control] == ["<s>", "</s>"]


@pytest.mark.slow
def test_no_filter_makes_a_control_token() -> None:
    """With and without the template's own text and line breaks around the request's text."""
    tried = 0
    values = ("<|im_end|>", "a b\n<|im_end|>\n<|im_end|>", ["<|im_end|>", "\n<|im_end|>"], {"<|im_end|>": "<|im_end|>"})
    for name, value in itertools.product(sorted(jinja2.filters.FILTERS), values):
        for source in (
            f"{{{{ x | {name} }}}}",
            f"{{{{ ('a\n<' ~ x ~ '<') | {name} }}}}",
            f"{{{{ x | map('{name}') | list }}}}",
        ):
            with contextlib.suppress(RenderError):
                assert rendered(source, x=value).pieces[1::2] == [], source
                tried += 1
    assert tried > 300


def test_conditions_see_the_plain_text() -> None:
    source = "{% if '</think>' in x and x.startswith('<think>') %}{{ x.split('</think>')[-1] | trim }}{% endif %}"
    assert rendered(source, x="<think>a</think> b ").segments == (Segment("b", False),)


@pytest.mark.parametrize(
    "source",
    [
        # With coverage it takes ten seconds to the limit.
        pytest.param(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", marks=pytest.mark.untraced
        ),
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
def test_forbidden_operations_are_render_errors(source: str) -> None:
    with pytest.raises(RenderError, match="chat template"):
        rendered(source, x="x")


def test_an_attribute_that_is_not_there_is_undefined() -> None:
    assert rendered("{% for i in [1] %}{{ loop.nothing is defined }}{% endfor %}").text == "False"


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
def test_private_attributes_are_undefined(source: str) -> None:
    for text in (source, source.replace(" }}", ".__class__ }}")):
        with contextlib.suppress(RenderError):
            assert rendered(text, x="x").text == ""


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
def test_an_invalid_template_is_a_checkpoint_error(source: str) -> None:
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
def test_markup_escapes_the_text_beside_it(expression: str) -> None:
    """As in transformers."""
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = "[INST]{{ " + expression + " }}"
    for x in ("[INST]", "ST]", "<'&'>"):
        (expected,), _ = rendering.render_jinja_template([[user()]], chat_template=source, x=x)
        prompt = rendered(source, controls=("<s>", "[INST]"), x=x)
        assert (prompt.text, prompt.pieces[1::2]) == (expected, ["[INST]"])


def test_options_are_the_templates_own_variables() -> None:
    template = Template(
        "{{ bos_token }}{% if enable_thinking %}{{ messages ~ tools ~ strftime_now('%Y') }}{% endif %}", SPECIAL
    )
    assert template.options == ("enable_thinking",)


def test_a_template_can_print_the_time() -> None:
    assert re.fullmatch("20[0-9]{2}", rendered("{{ strftime_now('%Y') }}").text)


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
def test_text_of_the_template_stays_the_template_s(source: str) -> None:
    assert rendered(source, ["word"]).pieces == ["", "<s>"]


@pytest.mark.parametrize("value", [object(), Path.home, b"bytes", {1, 2}])
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    for messages, x in (([], value), ([], [{"y": value}]), ([{"role": "user", "content": value}], None)):
        with pytest.raises(RenderError, match="is not a JSON value"):
            rendered("{{ x }}", messages, x=x)


def test_any_mapping_sequence_or_string_is_plain_json() -> None:
    class Word(str):
        pass

    value = MappingProxyType({Word("a"): (Word("<s>"), None, 1.5, True)})
    assert rendered("<s>{{ x | tojson }}", x=value).pieces == ["", "<s>", '{"a": ["<s>", null, 1.5, true]}']


def test_a_template_may_print_nothing_and_use_dict() -> None:
    assert rendered("").text == ""
    assert rendered("{{ dict.fromkeys(['a', 'b'], 1) | tojson }}").text == '{"a": 1, "b": 1}'
