"""What a chat template may do is bounded: from the first byte of it, whatever it does with what it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.errors import CheckpointError, RenderError
from dovetail.formats.derived.limits import Limits
from dovetail.formats.derived.template import Template, pattern
from tests.formats.test_registry import checkpoint

CONTROLS = pattern(("<|end|>",))


def render(template: Template, limits: Limits | None = None) -> str:
    messages = [{"role": "user", "content": "hi"}]
    return template.render(messages, None, controls=CONTROLS, add_generation_prompt=True, limits=limits).text


#: A list of two references to a list of two references to …, 40 deep.
NESTED = "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
#: The same of tuples, which can be keys.
KEY = NESTED.replace("[1]", "(1,)").replace("[ns.s, ns.s]", "(ns.s, ns.s)")
BIG = "{% set b = 'x' * 4000000 %}{% set list = [0] * 4000000 %}"
OFTEN = "{% for i in range(90000) %}{% for j in range(50) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        *("{{ [1] | slice(50000000) | list | length }}", "{{ [1] | batch(30000000, 0) | list | length }}"),
        *("{{ ('ab' * 3000000) | unique | list }}", "{{ ('a-' * 5000000) | title | length }}"),
        *("{{ range(90000) | map('string') | join('y' * 1000000) }}", "{{ 'y'.join(range(9) | map('list')) * 10**9 }}"),
        *("{{ ('y' * 9000000) | list | sort | length }}", "{{ [[1]] | sum(start=[2]) }}"),
    ],
)
def test_filters_of_constants_do_not_run_while_a_template_compiles(source: str) -> None:
    """They are within the limits of a rendering."""
    template = Template(source)
    with pytest.raises(RenderError):
        render(template)


@pytest.mark.parametrize(
    "use",
    [
        *("{{ ns.s }}", "{{ ns }}", "{{ ns.s | string }}", "{{ ns.s | tojson }}", "{{ ns.s | tojson(indent=1) }}"),
        *("{{ ns.s | pprint }}", "{{ 'a' ~ ns.s }}", "{{ '%s' % (ns.s,) }}", "{{ '{}'.format(ns.s) }}"),
        *("{{ ns.s == [ns.s[0], ns.s[1]] }}", "{{ 1 if ns.s < ns.s < ns.s }}", "{{ [5] in ns.s }}"),
        *("{{ ns.s is eq([ns.s, 1]) }}", "{{ [ns.s] | select('in', [[ns.s]]) | list }}", "{{ [ns.s].index([1]) }}"),
        *("{{ [ns.s, 'a'] | last }}", "{{ [ns.s] | join(',') }}", "{{ [ns.s] | map('string') | list }}"),
        *("{{ dict(a=ns.s).values() }}", "{{ [ns.s] | unique | list }}", "{{ raise_exception(ns.s) }}"),
        *("{{ ns.s | replace('1', '2') }}", "{% filter upper %}{{ ns.s }}{% endfilter %}", "{{ ns.s | xmlattr }}"),
        *(
            "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(ns.s) }}",
            "{% for i in [1] %}{{ loop.changed(ns.s) }}{% endfor %}",
        ),
    ],
)
def test_a_list_that_is_shared_counts_as_often_as_it_is_met(use: str) -> None:
    with pytest.raises(RenderError):
        render(Template(NESTED + use), limits=Limits(200_000))


@pytest.mark.parametrize("use", ["{{ {ns.s: 1} }}", "{{ {}[ns.s] }}", "{{ {}.get(ns.s) }}", "{{ dict([(ns.s, 1)]) }}"])
def test_a_nested_key_is_counted_before_it_is_hashed(use: str) -> None:
    with pytest.raises(RenderError, match="times over"):
        render(Template(KEY + use), limits=Limits(200_000))


@pytest.mark.parametrize(
    "work",
    [
        *("b == b ~ ''", "'y' in b", "b[1:]", "b.find('y')", "b | upper", "b.split('y')", "b.replace('y', 'z')"),
        *("list[1:]", "list + list", "1 in list", "list.count(1)", "list.copy()", "range(90000) | list", "b + 'y'"),
    ],
)
def test_work_on_long_values_counts_in_loops(work: str) -> None:
    source = BIG + OFTEN.replace("%}{% endfor %}{% endfor", f"%}}{{% set x = {work} %}}{{% endfor %}}{{% endfor")
    with pytest.raises(RenderError, match="times over"):
        render(Template(source), limits=Limits(500_000))


@pytest.mark.parametrize(
    "source",
    [
        *("{{ ('{0}' * 1000000).format('x' * 100000) }}", "{{ ('%(a)s' * 1000000) % {'a': 'x' * 100000} }}"),
        *("{{ ('{a}' * 1000000).format_map({'a': 'x' * 100000}) }}", "{{ ('\n' * 1000000) | indent('y' * 9000) }}"),
        *("{{ ('\t' * 1000000).expandtabs(9000) }}", "{{ ('x ' * 1000000) | wordwrap(1, true, 'y' * 9000) }}"),
        *("{{ ('x' * 1000000).translate({120: 'y' * 1000}) }}", "{{ range(90000) | join('y' * 100000) }}"),
        *(
            "{{ dict.fromkeys(range(90000)) | join('y' * 100000) }}",
            "{{ ('y' * 900000).join(range(90) | map('string')) }}",
        ),
        *("{{ ([1] * 1000000) | replace('1', 'y' * 1000) }}", "{{ ('b' * 1000000).strip('a' * 1000000) }}"),
        "{% set ns = namespace(s=[1]) %}{% for i in range(300) %}{% set ns.s = [ns.s, 1] %}{% endfor %}"
        "{{ ([ns.s] * 50) | tojson(indent=9000) }}",
    ],
)
def test_no_text_is_longer_than_the_longest(source: str) -> None:
    with pytest.raises(RenderError, match="text too"):
        render(Template(source), limits=Limits(5_000_000, 10_000_000, 20_000_000))


def test_a_text_in_place_of_a_list_is_counted_by_characters() -> None:
    source = "{% set b = 'x' * 300000 %}{{ b | list | length }}{{ ('a', 'b').index('b') }}{{ 'a-b'.split('-', 1)[0] }}"
    with pytest.raises(RenderError, match="times over"):
        render(Template(source), limits=Limits(200_000))
    assert render(Template(source)) == "3000001a"
    with pytest.raises(RenderError, match="not iterable"):
        render(Template("{{ 5 | join }}"))


def test_texts_are_encoded_in_linear_time() -> None:
    assert "b'x'" in render(Template("{{ 'x'.encode() }}{{ 'x'.encode('utf-8') }}"))
    with pytest.raises(RenderError, match="may encode"):
        render(Template("{{ ('é' * 9).encode('punycode') }}"))


def test_what_templates_do_is_done_alike() -> None:
    """Comparisons, slices, keys and filters, which are counted."""
    source = (
        "{{ messages[0].role == 'user' }}{{ messages == messages }}{{ 1 < 2 < 3 }}{{ 3 not in [1, 2] }}"
        "{{ messages[1:] | length }}{{ 'abcd'[::-1] }}{{ 'abcd'[:-1] }}{{ {('a', 1): 2}[('a', 1)] }}"
        "{{ [1, 2] | sum }}{{ [{'a': 1}] | sum(attribute='a') }}{{ ['b', 'a'] | sort | join(',') }}"
        "{{ [1, 2, 3] | batch(2) | list }}{{ [1, 2] | select('eq', 2) | list }}{{ [2, 1] | map('string') | join('-') }}"
        "{{ {'b': 1} | tojson(indent=1) }}{{ ['x'] | first }}{{ {'b': 1}.items() | list }}{{ 'a' is in 'abc' }}"
        "{{ [1] | pprint }}"
    )
    printed = "TrueTrueTrueTrue0dcbaabc231a,b[[1, 2], [3]][2]2-1{\n \"b\": 1\n}x[('b', 1)]True[1]"
    assert render(Template(source)) == printed


def test_a_template_that_does_too_much_with_the_shortest_conversation_is_no_format(tmp_path: Path) -> None:
    """`render`, `plan` and `serve` make the format first, so none of them goes on with such a checkpoint."""
    folder = checkpoint(tmp_path, "<|im_end|>", template=NESTED + "{{ ns.s }}")
    with pytest.raises(CheckpointError, match=r"cannot answer even `hi`: the chat template loops"):
        dovetail.format(folder)
    refusing = checkpoint(tmp_path, "<|im_end|>", template="{{ raise_exception('no') }}")
    assert not dovetail.format(refusing).reads_calls
