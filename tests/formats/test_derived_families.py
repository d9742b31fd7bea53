"""Published layouts of calls that need no family of their own: differencing derives them from templates that show them.

The templates here are ours. They write an answer as the parsers of other engines and their tests have it.
"""

from __future__ import annotations

from pathlib import Path

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.declared.declared import TagCalls
from dovetail.formats.declared.named_calls import NamedCalls
from dovetail.formats.derived import proof
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.grammar import Concat, ControlToken, ExactText, FreeText, Maybe
from dovetail.tokens import Prompt
from tests.formats import chat_templates
from tests.formats.conversations import TOOLS
from tests.formats.test_differencing import listed, tagged
from tests.reading.families import PieceTokenizer

ANSWER = Message("Yes.", "Hm.", (Call("call_0", "get_weather", '{"city": "é <b>"}'), Call("call_1", "now", "{}")))
_ENDS = ("<|im_end|>",)


def _layout(fmt: JinjaFormat) -> object:
    layout = fmt.derived.derivation.layout
    assert (fmt.family_name, fmt.verdict) == ("derived", proof.Verdict()) and layout is not None
    return layout.calls


def _ids_of(prompt: Prompt, tokenizer: PieceTokenizer) -> list[int]:
    return [
        token
        for text, control in prompt.segments
        for token in ([tokenizer.control[text]] if control else tokenizer.encode(text))
    ]


def test_step_3() -> None:
    """Control tokens and a word stand in front of a call's tag. Source: the parsers of vLLM and SGLang."""
    controls = (
        *("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        *("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
    )
    source = tagged(
        "{{- '<steptml:parameter name=\"' + k + '\">' + v + '</steptml:parameter>\n' }}",
        call=(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            '">\\n@</steptml:invoke><｜tool_call_end｜>\\n',
        ),
        around=("<｜tool_calls_begin｜>\\n", "<｜tool_calls_end｜>"),
    )
    fmt = chat_templates.of_source(source, ("<|im_start|>", *_ENDS, *controls), ends=_ENDS)
    assert _layout(fmt) == TagCalls(
        "<｜tool_calls_begin｜>\n{calls}<｜tool_calls_end｜>",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n{parameters}'
        "</steptml:invoke><｜tool_call_end｜>\n",
        '<steptml:parameter name="{key}">{value}</steptml:parameter>\n',
    )


def _plamo(name: str) -> tuple[str, str]:
    return f"<|plamo:begin_{name}:plamo|>", f"<|plamo:end_{name}:plamo|>"


def test_plamo_3() -> None:
    """A marker is a token that begins it, its name as text, and a token that ends it. Source: vLLM's parser."""
    names = "think", "tool_requests", "tool_request", "tool_name", "tool_arguments"
    think, section, call, name, given = map(_plamo, names)
    header = name[1] + given[0] + "<|plamo:constrain|>json<|plamo:msg|>"
    written = f"{{{{- '{call[0]}{name[0]}' + c.name + '{header}' }}}}{{{{- c.arguments | tojson }}}}"
    source = listed(written + f"{{{{- '{given[1]}{call[1]}' }}}}", around=section, between="")
    thought = (
        f"{{%- if m.reasoning_content %}}{{{{- '{think[0]}' + m.reasoning_content + '{think[1]}' }}}}{{%- endif %}}"
    )
    source = source.replace("{{- m.content", thought + "{{- m.content", 1)
    controls = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>")
    fmt = chat_templates.of_source(source, ("<|im_start|>", *_ENDS, *controls), ends=_ENDS)
    assert _layout(fmt) == NamedCalls(
        section[0] + "{calls}" + section[1], call[0] + name[0] + "{name}" + header + "{arguments}" + given[1] + call[1]
    )
    tokenizer = PieceTokenizer((*controls, *_ENDS), ("ing",))
    reader = fmt.reader(TOOLS, tokenizer=tokenizer, thinking=False)
    read = dovetail.fold([*reader.feed("", _ids_of(fmt.write(ANSWER), tokenizer)), *reader.finish()])
    assert (read.content, read.reasoning, read.defects) == (ANSWER.content, ANSWER.reasoning, ())
    assert [(each.name, each.arguments) for each in read.calls] == [
        (each.name, each.arguments) for each in ANSWER.calls
    ]
    grammar = fmt.grammar(TOOLS)
    assert grammar is not None and isinstance(grammar.root, Concat)
    opens, closes = (
        Concat((ControlToken(token), ExactText("think"), ControlToken(":plamo|>"))) for token in controls[:2]
    )
    assert grammar.root.items[0] == Maybe(Concat((opens, Concat((FreeText(), closes)))))


def test_hunyuan_3_and_4(shared_data: Path) -> None:
    """Every control token ends in a suffix of the checkpoint's own."""
    source = (shared_data / "templates/llama.cpp/tencent-Hy3.jinja").read_text(encoding="utf-8")
    for suffix in (":6124c78e", ":opensource"):
        other = source.replace("':opensource'", f"'{suffix}'")
        fmt = chat_templates.of_source(other, chat_templates.controls(other))
        calls = _layout(fmt)
        assert isinstance(calls, TagCalls) and calls.section == f"<tool_calls{suffix}>\n{{calls}}</tool_calls{suffix}>"


def test_mirothinker() -> None:
    """Its checkpoint's template writes Qwen3's calls; this is what its publisher's parser for vLLM reads."""
    call = (
        "<use_mcp_tool>\n<server_name>default</server_name>\n<tool_name>{name}</tool_name>\n<arguments>\n{arguments}\n"
        "</arguments>\n</use_mcp_tool>"
    )
    shown = call.replace("{name}", "' + c.name + '").replace("{arguments}", "' + c.arguments | tojson + '")
    source = listed(f"{{{{- '{shown}' }}}}", around=("", ""), between="\n")
    fmt = chat_templates.of_source(source, ("<|im_start|>", *_ENDS), ends=_ENDS)
    assert _layout(fmt) == NamedCalls("{calls}", call, between="\n")
    assert [call.name for call in fmt.parse(fmt.write(ANSWER, thinking=False).text, TOOLS).calls] == [
        "get_weather",
        "now",
    ]
