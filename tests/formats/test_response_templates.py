"""Formats that a checkpoint's `response_template` declares: which are used, what they read, and which are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, Message, fold
from dovetail.formats import registry
from dovetail.formats.base import Format
from dovetail.formats.derived import proof
from dovetail.formats.derived.detection import own_template
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.formats.derived.proof import Verdict
from dovetail.formats.response_templates.anchors import BLANK, templates
from dovetail.formats.response_templates.families import families
from dovetail.tokens import Prompt
from tests.examples import slow_but
from tests.formats import chat_templates, response_templates
from tests.formats.chat_templates import PLAIN, QWEN3, SMALL_CONTROLS
from tests.formats.response_templates import (
    CALL,
    COHERE,
    ERNIE,
    GEMMA4,
    GPT_OSS,
    LFM2,
    NAMED,
    PUBLISHED,
    QWEN,
    QWEN3_CODER,
    QWEN35,
    SMOLLM,
    THINK,
    around,
    each,
    spec,
)
from tests.formats.test_differencing import CONTROLS, LISTED, listed, tagged
from tests.reading.families import PieceTokenizer

ENDS = ("<|im_end|>",)
LISTED_SPEC = spec(
    tool_calls=around(
        "<|calls|>",
        "<|/calls|>",
        content="json",
        transform_each=True,
        transform={"type": "function", "function": {"name": "{tool}", "arguments": "{input}"}},
    )
)


def of(
    source: str, response_template: Any, controls: tuple[str, ...] = CONTROLS, *, native: bool = False
) -> JinjaFormat:
    return chat_templates.of_source(source, controls, ends=ENDS, response_template=response_template, native=native)


# -- when one is used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_but(PUBLISHED, "llama.cpp/Qwen3.5-4B"))
def test_published_templates_without_their_families(name: str, shared_data: Path) -> None:
    """Each is proved against the chat template: answers are read, written and constrained as that renders them."""
    source = (shared_data / f"templates/{name}.jinja").read_text(encoding="utf-8")
    controls = chat_templates.controls(source)
    fmt = chat_templates.of_source(source, controls, response_template=PUBLISHED[name], native=False)
    assert (fmt.family_name, fmt.verdict, fmt.refusal) == ("response_template", Verdict(), "")


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        (LISTED, LISTED_SPEC["fields"]),
        (
            listed(
                """{{- '<fn=' + c.name + '>' }}{{- c.arguments | tojson }}{{- '</fn>' }}""",
                around=("<|calls|>", "<|/calls|>"),
                between="",
            )
            .replace("<|calls|>", "")
            .replace("<|/calls|>", ""),
            {"tool_calls": each("json", NAMED, open_pattern=r"<fn=(?P<name>[^>]+)>", close="</fn>")},
        ),
        (
            tagged(
                "{{- '<|key|>' + k + '<|/key|><|value|>' + v + '<|/value|>\n' }}",
                call=("<|call|>", "<|sep|>\\n@<|/call|>"),
            ),
            {
                "tool_calls": each(
                    "xml-inline",
                    NAMED,
                    open_pattern=r"<\|call\|>(?P<name>[^<]+)<\|sep\|>",
                    close="<|/call|>",
                    content_args={
                        "tag_pattern": r"<\|key\|>(?P<key>.*?)<\|/key\|><\|value\|>(?P<value>.*?)<\|/value\|>"
                    },
                )
            },
        ),
        (
            listed(
                """{{- '<|call|>{"n": "' + loop.index0 | string + '", "tool": "' + c.name + '", "input": ' }}"""
                """{{- c.arguments | tojson }}{{- '}<|/call|>' }}""",
                around=("", ""),
                between="\\n",
            ),
            {
                "tool_calls": each(
                    "json",
                    {"function": {"name": "{content.tool}", "arguments": "{content.input}"}},
                    open="<|call|>",
                    close="<|/call|>",
                ),
            },
        ),
    ],
)
def test_it_comes_before_differencing(source: str, fields: dict[str, Any]) -> None:
    fmt = of(source, spec(**fields))
    assert (fmt.family_name, fmt.verdict, fmt.refusal) == ("response_template", Verdict(), "")
    assert of(source, None).family_name == "derived"


def test_a_native_family_comes_first() -> None:
    assert of(QWEN3, LISTED_SPEC, SMALL_CONTROLS, native=True).family_name == "qwen3"


def test_white_space_that_it_does_not_declare_is_the_chat_templates() -> None:
    loose = listed(
        """{{- '{"tool":"' + c.name + '", "input":  ' }}{{- c.arguments | tojson }}{{- '}' }}""",
        around=("\\n<|calls|>[\\n", " ]<|/calls|>"),
        between=",\\n ",
    )
    fmt = of(loose, LISTED_SPEC)
    assert (fmt.family_name, fmt.verdict) == ("response_template", Verdict())
    called = fmt.write(Message("Yes.", "", (Call("", "now", "{}"), Call("", "now", "{}")))).text
    shown = '{"tool":"now", "input":  {}}'
    assert called == f"Yes.\n<|calls|>[\n{shown},\n {shown} ]<|/calls|><|im_end|>"


@pytest.mark.parametrize(("key", "value", "read"), [("id", "t.id", True), ("n", "loop.index0 | string", False)])
def test_ids_that_it_does_not_declare(key: str, value: str, read: bool) -> None:
    """An id may come last, but no reader takes a number there."""
    call = """{{- '{"tool": "' + c.name + '", "input": ' }}{{- c.arguments | tojson }}"""
    fmt = of(listed(f"""{call}{{{{- ', "{key}": "' + {value} + '"}}' }}}}"""), LISTED_SPEC)
    assert (fmt.family_name == "response_template") == read == (not fmt.refusal)


@pytest.mark.parametrize(("refused", "proved"), [("m.content == ''", True), ("m.tool_calls", False)])
def test_chat_templates_that_refuse_messages(refused: str, proved: bool) -> None:
    refusing = f"{{% if {refused} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    fmt = of(f"{{%- for m in messages %}}{refusing}{{% endfor %}}{LISTED}", LISTED_SPEC)
    assert fmt.family_name == "response_template"
    assert fmt.verdict == (Verdict() if proved else None)


def test_calls_that_it_reads_are_written_as_the_chat_template_writes_them() -> None:
    compact = listed(
        """{{- '{"tool":"' + c.name + '","input":' }}{{- c.arguments | tojson(separators=(',', ':')) }}{{- '}' }}"""
    )
    fmt = of(compact, LISTED_SPEC)
    assert (fmt.family_name, fmt.verdict) == ("response_template", Verdict())
    turned = listed("""{{- '{"input": ' }}{{- c.arguments | tojson }}{{- ', "tool": "' + c.name + '"}' }}""")
    fmt = of(turned, LISTED_SPEC)
    assert fmt.family_name == "response_template" and fmt.verdict is not None
    assert not fmt.verdict.reading and "is written otherwise" in fmt.verdict.writing


@pytest.mark.parametrize("response", [SMOLLM, QWEN35, LFM2, GEMMA4, COHERE])
def test_a_chat_template_that_shows_no_calls(response: Any) -> None:
    """Then the declaration is proved against itself."""
    source = PLAIN.replace("<|im_start|>{{", "{% if tools %}{{ tools | tojson }}{% endif %}<|im_start|>{{")
    more = next(literals for known, *literals in FAMILIES.values() if known is response)
    fmt = of(source, response, (*SMALL_CONTROLS, *more))
    assert (fmt.family_name, fmt.verdict, fmt.reads_calls) == ("response_template", None, True), fmt.refusal
    assert of(source, None, SMALL_CONTROLS).reads_calls is False
    sent = Message("Yes.", "", (Call("call_0", "get_weather", '{"city": "é"}'), Call("call_1", "now", "{}")))
    read = fmt.parse(fmt.write(sent).text, proof.TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in read.calls] == [
        ("get_weather", {"city": "é"}),
        ("now", {}),
    ]
    assert read.content.strip() == "Yes."


def test_a_checkpoint(tmp_path: Path) -> None:
    tokens = [{"id": i, "content": literal} for i, literal in enumerate(CONTROLS)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (tmp_path / "chat_template.jinja").write_text(LISTED)

    def because(response_template: Any) -> str:
        config = {"eos_token": "<|im_end|>", "response_template": response_template}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return dovetail.format(tmp_path).because

    assert because(LISTED_SPEC).endswith("its calls are read as its response_template says ('<|calls|>[')")
    refused = because({"fields": 3})
    assert "derived by differencing" in refused
    assert refused.endswith("its response_template is not used, because it has no fields")
    own, declared = own_template(tmp_path, registry.FAMILIES)
    assert own is not None and (own.family_name, declared) == ("derived", {"fields": 3})
    (tmp_path / "chat_template.jinja").unlink()
    assert own_template(tmp_path, registry.FAMILIES) == (None, {"fields": 3})


# -- the same messages as transformers --------------------------------------------------------------------------------

FAMILIES = {
    "cohere": (COHERE, *response_templates.COHERE_CONTROLS),
    "smollm": (SMOLLM,),
    "qwen": (QWEN,),
    "qwen3_coder": (QWEN3_CODER,),
    "qwen35": (QWEN35,),
    "gemma4": (GEMMA4, "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    "lfm2": (LFM2, "<|tool_call_start|>", "<|tool_call_end|>"),
    "ernie": (ERNIE, "<response>", "</response>", "<tool_call>", "</tool_call>"),
}
_TEXTS = st.text(st.sampled_from("ab {}[]\"':,\\\né<>"), max_size=12)
_VALUES = {
    "string": st.text(st.sampled_from("ab {}[]':,é"), max_size=8),
    "integer": st.integers(-9, 99),
    "boolean": st.booleans(),
    "array": st.lists(st.text(st.sampled_from("ab é"), max_size=3), max_size=2),
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_it",
            "parameters": {"type": "object", "properties": {kind: {"type": kind} for kind in _VALUES}},
        },
    }
]
_ARGUMENTS = st.fixed_dictionaries({}, optional=_VALUES)


def _family(name: str) -> Format:
    response, *controls = FAMILIES[name]
    kind, _ = next(families(response, controls, ENDS))
    return kind()


def _theirs(text: str, response: Any) -> dict[str, Any]:
    parsing = pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")
    read: dict[str, Any] = parsing.parse_response(text, response, prefix="", tools=_TOOLS)
    return read


@pytest.mark.parametrize("name", slow_but(FAMILIES, "cohere", "qwen3_coder", "gemma4", "lfm2", "ernie"))
@given(content=_TEXTS, reasoning=_TEXTS, calls=st.lists(_ARGUMENTS, max_size=2))
def test_messages_equal_those_of_transformers(
    name: str, content: str, reasoning: str, calls: list[dict[str, Any]]
) -> None:
    if name.startswith("qwen3"):  # they take white space off values, and one of them takes texts for JSON
        calls = [{k: f"é{v}é" if isinstance(v, str) else v for k, v in each.items()} for each in calls]
    fmt, response = _family(name), FAMILIES[name][0]
    # A second region replaces the content of the first one, and ERNIE's reasoning begins an answer.
    content = "" if calls and name in ("smollm", "qwen3_coder", "lfm2", "gemma4") else content.strip()
    reasoning = "" if fmt.reasoning == "none" else reasoning.strip() or "." if name == "ernie" else reasoning.strip()
    called = tuple(Call("", "find_it", json.dumps(each, ensure_ascii=False)) for each in calls)
    prompt = fmt.write(Message(content, reasoning, called))
    if opened := name == "ernie":  # whose prompt opens the block
        prompt = Prompt(proof.segments_from(prompt, len("<think>\n")))
    ended = name in ("smollm", "qwen", "qwen35", "lfm2")  # the response template knows the end of the turn
    theirs = _theirs(prompt.text if ended else prompt.text.removesuffix("<|im_end|>"), response)
    reader = fmt.reader(_TOOLS, thinking=opened, tokenizer=PieceTokenizer(fmt.reader_type.controls))
    ours = fold([*reader.feed_segments(prompt.segments), *reader.finish()])
    field = next((each for each in ("thinking", "reasoning_content") if each in theirs), "thinking")
    shown = theirs.get("content", "" if "content" in response["fields"] else content)
    assert (ours.content.strip(), ours.reasoning.strip()) == (shown, theirs.get(field, ""))
    assert [(call.name, json.loads(call.arguments)) for call in ours.calls] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in theirs.get("tool_calls", ())
    ]


def test_harmony_reads_what_gpt_oss_declares() -> None:
    """No declaration expresses that header, and the native family reads it."""
    text = (
        "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary to=functions.find_it "
        '<|constrain|>json<|message|>{"string": "é"}<|call|>'
    )
    read, theirs = dovetail.format("harmony").parse(text, _TOOLS), _theirs(text, GPT_OSS)
    assert (read.reasoning, theirs["thinking"]) == ("They ask.", "They ask.")
    assert [call["function"]["arguments"] for call in theirs["tool_calls"]] == [json.loads(read.calls[0].arguments)]


# -- what is refused --------------------------------------------------------------------------------------------------

_JSON = each("json", CALL, open="<|calls|>", close="<|/calls|>")


def _calls(**changes: Any) -> dict[str, Any]:
    return spec(tool_calls={key: value for key, value in {**_JSON, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ([], "not an object"),
        ("{}", "not an object"),
        ({**LISTED_SPEC, "version": 2}, "its version is 2"),
        ({**LISTED_SPEC, "more": 1}, "unknown keys: more"),
        ({**LISTED_SPEC, "defaults": 1}, "defaults are not an object"),
        ({**LISTED_SPEC, "fields": {}}, "no fields"),
        ({"fields": LISTED_SPEC["fields"]}, "start_anchor or start_anchor_pattern"),
        (spec(tool_calls=3), "tool_calls is not an object"),
        (_calls(shape="x"), "tool_calls has unknown keys: shape"),
        (spec(**_calls()["fields"], notes=THINK), "field notes is no part of an answer"),
        (spec(thinking={"close": "</think>"}, **_calls()["fields"]), "nothing opens its field thinking"),
        (spec(thinking=THINK, reasoning_content=THINK, **_calls()["fields"]), "two fields for reasoning"),
        (spec(thinking=THINK), "no field for calls"),
        (spec(thinking={**THINK, "content": "json"}, **_calls()["fields"]), "must be text"),
        (spec(thinking={**THINK, "open": ["<a>", "<b>"]}, **_calls()["fields"]), "one markup must open it"),
        (spec(content={"content": "json"}, **_calls()["fields"]), "must be text"),
        (_calls(open=None, open_pattern=r"\s*"), "nothing opens a call"),
        (_calls(open_pattern="<a>"), "both open and open_pattern"),
        (_calls(open=3), "open must be a text"),
        (_calls(open=[]), "open has no markup"),
        (_calls(open="{name}"), "open has no markup"),
        (_calls(open="<" + "x" * 2000), "open is too long"),
        (_calls(open=None, open_pattern=3), "open_pattern must be a text"),
        (_calls(open=None, open_pattern="x" * 2000), "more than 1,000 characters"),
        (_calls(open=None, open_pattern="(?:a|b)" * 9), "more than 16 alternatives"),
        (_calls(open=None, open_pattern=r"<(a+)+>"), "exponential time"),
        (_calls(open=None, open_pattern=r"<(?:a|a)*>"), "exponential time"),
        (_calls(open=None, open_pattern=r"<(?:\w?){50}>"), "exponential time"),
        (_calls(close=None, close_pattern=r"(?:(?:[^<]*)*)+</a>"), "exponential time"),
        (_calls(open=None, open_pattern=r"<a.*?>"), "more than literals, white space and named groups: '.*?>'"),
        (_calls(open=None, open_pattern=r"(?=<a>)"), "more than literals"),
        (_calls(content="kv-lines"), "calls of the kind 'kv-lines'"),
        (_calls(content=["json"]), "calls of the kind"),
        (_calls(content_args=3), "content_args must be an object"),
        (_calls(content_args={"unquoted_keys": True}), "not JSON"),
        (_calls(transform=None), "its transform"),
        (_calls(transform={"function": {"name": "{a.b}", "arguments": "{content}"}}), "its transform"),
        (_calls(transform=NAMED), "its name must stand in what opens it"),
        (
            _calls(transform=NAMED, open=None, open_pattern="<a>(?P<name>.+)", content_args={"unquoted_keys": True}),
            "one pair of markers",
        ),
        (
            _calls(
                transform=NAMED, open=None, open_pattern="<a>(?P<name>.+)", content_args={"string_delims": {"a": 1}}
            ),
            "one pair of markers",
        ),
        (_calls(content="xml-inline"), "its name must stand in what opens it"),
        (
            _calls(content="xml-inline", transform=NAMED, open=None, open_pattern="<a>(?P<name>.+)<b>"),
            "tag_pattern must be a text",
        ),
        (
            _calls(
                content="xml-inline",
                transform=NAMED,
                open=None,
                open_pattern="<a>(?P<name>.+)<b>",
                content_args={"tag_pattern": "(?P<key>.+)"},
            ),
            "tag_pattern must have a key and a value",
        ),
        (
            _calls(transform=NAMED, open=None, open_pattern="(?:<a>|<b>)(?P<name>.+)<c>", close="<d>"),
            "alternative markup",
        ),
        (_calls(content="python-call-list", open=["<a>", "<b>"]), "one marker must open a list"),
        (
            spec(thinking=around("<a>", "</a>"), tool_calls={**_JSON, "content": "python-call-list"}),
            "beside Python calls",
        ),
        (spec(thinking=around("<|think|>", "<|think|>"), **LISTED_SPEC["fields"]), "must end in another tag"),
        (_calls(open="<|im_end|>", close="</s>"), "nothing ends its turns"),
        (
            spec(content=around("<a>", "</a>"), **LISTED_SPEC["fields"]),
            "between <a> and </a>, which are no control tokens",
        ),
    ],
)
def test_what_is_refused_and_why(response: Any, reason: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        [*families(response, CONTROLS, ENDS)]
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (["fields"], "it is not an object"),
        (_calls(open=None, open_pattern=r"<(a+)+>"), "its field tool_calls: open_pattern may take exponential time"),
        (_calls(), "the chat template contradicts it: an answer with"),
        (_calls(open="{", close="}"), "the chat template contradicts it: an answer with"),
        (_calls(open="<|im", close="}"), "no declaration expresses it"),
    ],
)
def test_the_next_source_is_taken(response: Any, reason: str) -> None:
    fmt = of(LISTED, response)
    assert fmt.family_name == "derived"
    assert reason in fmt.refusal


def test_reasoning_elsewhere_than_in_the_chat_template() -> None:
    response = spec(**SMOLLM["fields"] | {"thinking": around("<|think|>", "<|/think|>")})
    fmt = of(QWEN3, response, (*SMALL_CONTROLS, *CONTROLS))
    assert fmt.family_name == "derived"
    assert (
        "it puts reasoning in ('<|think|>', '<|/think|>'), and the chat template in ('<think>', '</think>')"
        in fmt.refusal
    )


def test_without_differencing_no_calls_are_read() -> None:
    silent = "{{ tools | tojson }}" + PLAIN
    fmt = of(silent, _calls(open="{", close="}"), SMALL_CONTROLS)
    assert (fmt.family_name, fmt.reads_calls) == ("plain", False) and fmt.refusal


_JUNK = st.sampled_from(
    [None, 0, -1, True, "", "x", "{", "(", "(?P<name>.*)", r"\s*", "[", "<|calls|>", [], ["a"], {}, {"a": 1}]
)


@given(data=st.data())
def test_no_response_template_is_more_than_refused(data: st.DataObject) -> None:
    """Any part of one may be anything."""
    known = [value for name, value in sorted(vars(response_templates).items()) if name.isupper() and "fields" in value]
    response = copy.deepcopy(data.draw(st.sampled_from(known)))
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = response
        while isinstance(node, dict) and node:
            key = data.draw(st.sampled_from(sorted(node)))
            if data.draw(st.booleans()) and isinstance(node[key], dict):
                node = node[key]
                continue
            node[key] = data.draw(_JUNK)
            break
    try:
        made = [kind for kind, _ in families(response, CONTROLS, ENDS)]
    except (ValueError, TypeError):
        return
    assert made and all(issubclass(kind, Format) for kind in made)


@pytest.mark.parametrize(
    ("pattern", "made"),
    [
        (r"\s*<a>", [f"{BLANK}<a>"]),
        (r"<\|a\|>\n?\t", [f"<|a|>{BLANK}\t"]),
        (r"<f=(?P<name>[^>\n]+)>[ \n]*", [f"<f={{name}}>{BLANK}"]),
        (r"^(?:<a>|<b>)?x|y", ["<a>x", "<b>x", "x", "y"]),
        (r"(?:^|<a>\s*)", ["", f"<a>{BLANK}"]),
        (r"[", None),
        (r"a{2}", None),
        (r"(a)", None),
        (r"a$", None),
        (r"(?P<name>a)", None),
    ],
)
def test_patterns(pattern: str, made: list[str] | None) -> None:
    if made is not None:
        assert templates(pattern, "open_pattern") == made
        return
    with pytest.raises(ValueError, match="more than literals"):
        templates(pattern, "open_pattern")
