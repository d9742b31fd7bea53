"""OLMo 3's calls, each on a line of its own."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.formats.derived import proof
from tests.formats import chat_templates
from tests.formats.test_differencing import listed
from tests.reading import whole
from tests.reading.families import TOOLS
from tests.reading.whole import calls, kinds

WEATHER = [("get_weather", '{"city": "Paris", "alerts": true}')]
CALL = 'get_weather(city="Paris", alerts=true)'


@pytest.mark.parametrize(
    ("body", "expected", "content", "defects"),
    [
        (CALL, WEATHER, "", []),
        (f"\n{CALL}\n\n{CALL}\n", WEATHER * 2, "", []),
        (f"{CALL}, {CALL};", WEATHER * 2, "", ["stray_separator"] * 2),
        (CALL.replace("true", "True"), WEATHER, "", []),
        (f"[{CALL}]", WEATHER, "", []),
        (CALL.replace("(", " ("), WEATHER, "", []),
        ("ping(text=null)", [("ping", '{"text": null}')], "", []),
        ("", [], "", ["empty_section"]),
    ],
)
def test_sections(body: str, expected: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = whole.read("olmo3", f"<function_calls>{body}</function_calls>")
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


def test_a_template_that_shows_calls_so() -> None:
    """In the layout of OLMo 3.1's chat template."""
    values = "{%- for k, v in c.arguments.items() %}{{- k + '=' + v | tojson }}"
    values += "{%- if not loop.last %}{{- ', ' }}{%- endif %}"
    source = listed(
        "{{- c.name + '(' }}" + values + "{%- endfor %}{{- ')' }}",
        around=("<function_calls>", "</function_calls>"),
        between="\\n",
    )
    fmt = chat_templates.of_source(source, ("<|im_start|>", "<|im_end|>"), ends=("<|im_end|>",))
    assert (fmt.family_name, fmt.verdict) == ("olmo3", proof.Verdict())
    assert dovetail.format("olmo3").grammar(TOOLS[:1], parallel_tool_calls=False) is not None


def test_the_grammar_has_json_s_words() -> None:
    choice = {"type": "object", "properties": {"now": {"enum": [True, None, "a", 3]}}, "required": ["now"]}
    tool = {"type": "function", "function": {"name": "ping", "parameters": choice}}
    grammar = dovetail.format("olmo3").grammar([tool])
    assert grammar is not None
    text = grammar.lark()
    assert "true|null|" in text and "True" not in text and "None" not in text
