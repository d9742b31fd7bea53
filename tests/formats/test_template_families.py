"""What published chat templates show of answers reads back as these answers, in the family that each is read by."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.proof import Verdict
from dovetail.formats.derived.template import Template
from dovetail.formats.families.xlam import Xlam
from dovetail.tokens import Segment
from tests.formats import chat_templates
from tests.formats.chat_templates import SMALL_CONTROLS
from tests.formats.test_response_template_writing import BARE

#: The family of each template, and what the template shows of an answer with content and calls.
TEMPLATES = {
    "vllm/tool_chat_template_granite": ("granite", "calls"),
    "llama.cpp/ibm-granite-granite-3.3-2B-Instruct": ("granite", "content"),
    "llama.cpp/ibm-granite-granite-4.0": ("hermes", "both"),
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command_a", "calls"),
    "llama.cpp/Cohere2MoE": ("command_4", "calls"),
    "vllm/tool_chat_template_hunyuan_a13b": ("hunyuan", "both"),
    "vllm/tool_chat_template_internlm2_tool": ("internlm", "both"),
    "vllm/tool_chat_template_xlam_llama": ("xlam", "calls"),
    "vllm/tool_chat_template_xlam_qwen": ("xlam", "calls"),
    "vllm/tool_chat_template_phi4_mini": ("phi4_mini", "content"),
}
#: It names the family's marker only.
SHOWS_NO_CALLS = "llama.cpp/ibm-granite-granite-3.3-2B-Instruct"
USER = {"role": "user", "content": "Where?"}
ARGUMENTS: list[dict[str, Any]] = [
    {"city": 'é "q"\n<x>', "days": 3, "where": {"at": [1, None, True, 2.5], "": {}}},
    {},
]


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "does", "parameters": {"type": "object"}}}


TOOLS = [_tool("get_weather"), _tool("ping")]


def _called(arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("get_weather", "ping")
    return [
        {"id": str(i), "type": "function", "function": {"name": names[i], "arguments": json.dumps(made)}}
        for i, made in enumerate(arguments)
    ]


def _from(segments: list[Segment], start: int) -> Iterator[Segment]:
    at = 0
    for text, control in segments:
        if at + len(text) > start:
            yield Segment(text if control else text[max(0, start - at) :], control)
        at += len(text)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_template_shows_reads_back(shared_data: Path, template: str) -> None:
    fmt = chat_templates.of(shared_data / "templates" / f"{template}.jinja")
    family, shows = TEMPLATES[template]
    assert fmt.family_name == family
    for content, calls in itertools.product(("Say <this>.\n\nNow", ""), (0, 1, 2)):
        if (content or calls) and (content or template != SHOWS_NO_CALLS):
            read = _read(fmt, {"role": "assistant", "content": content}, ARGUMENTS[:calls])
            assert (read.content, read.defects) == ("" if calls and shows == "calls" else content, ())
            shown = ARGUMENTS[: 0 if content and shows == "content" else calls]
            assert [json.loads(call.arguments) for call in read.calls] == shown


def _read(fmt: JinjaFormat, message: dict[str, Any], arguments: list[dict[str, Any]]) -> dovetail.Message:
    if arguments:
        message = {**message, "tool_calls": _called(arguments), "reasoning_content": ""}
    messages, _ = fmt.repair([USER, message], TOOLS, off=["unanswered_call"])
    prompt = fmt.render(messages, TOOLS, add_generation_prompt=False)
    opened = fmt.render([USER], TOOLS)
    start = next(
        (i for i, (a, b) in enumerate(zip(opened.text, prompt.text, strict=False)) if a != b), len(opened.text)
    )
    reader = fmt.reader(TOOLS, thinking=fmt.left_open(opened) and start == len(opened.text))
    answer = itertools.takewhile(lambda it: it.text not in fmt.end_of_turn, _from([*prompt.segments], start))
    return dovetail.fold([*reader.feed_segments(answer), *reader.finish()])


def test_a_marker_that_is_text_in_the_family_may_be_a_control_token() -> None:
    fmt = jinja(Template(BARE), (*SMALL_CONTROLS, "<|eot_id|>"), [Xlam()], ends=["<|im_end|>"])
    assert (fmt.family_name, fmt.verdict) == ("xlam", Verdict())
    call = '[{"name": "ping", "arguments": {}}]'
    for control in (True, False):  # text that spells a token is text
        segments = (Segment("So: ", False), Segment("<tool_call>", control), Segment(call, False))
        reader = fmt.reader(TOOLS, thinking=False)
        read = dovetail.fold([*reader.feed_segments([*segments, Segment("</tool_call>", control)]), *reader.finish()])
        assert (read.content, [each.name for each in read.calls]) == (
            ("So: ", ["ping"]) if control else (f"So: <tool_call>{call}</tool_call>", [])
        )
        assert read.defects == ()
