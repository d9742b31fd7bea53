"""Published chat templates, with control tokens as their tokenizers have them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.template import Template
from dovetail.formats.registry import FAMILIES

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_TAGS = (
    "think|mm:think|tool_call|tool_response|arg_key|arg_value|seed:[a-z_]+|minimax:tool_call|start_of_turn|end_of_turn"
)
_TAGS += "|assistant|end_of_sentence|beginning_of_sentence|SPECIAL_1[0-2]|sep"
_MORE = r"\]<\]minimax\[>\[|<\w+\|>|<\|\"\|>|<(?:escape|start_function_call|end_function_call)>"
_WORDS = "INST|TOOL_CALLS|THINK|AVAILABLE_TOOLS|TOOL_RESULTS|ARGS|CALL_ID|TOOL_CONTENT|SYSTEM_PROMPT"
#: Literals of control tokens, without brackets that a template may build from words of the request.
_CONTROL = re.compile(
    rf"<\|[^<>|'\"\s]+\|?>|<｜[^｜<>]+｜>|｜DSML｜|</?(?:{_TAGS})>|\[/?(?:{_WORDS})\]|\[e~\[|\]~b\]|{_MORE}"
)
#: The end of each of Hunyuan 3's control tokens.
_SUFFIX = re.compile(r"set HYTK = '(:\w+)'")
#: GigaChat 3's control tokens, which end in newlines (llama.cpp #17922).
_ENDING_IN_NEWLINES = re.compile(r'_sep="(<\|\w+\|>)((?:\\n)+)"')
#: MiniMax-M3's control token in front of each of its tags.
_MARK = "]<]minimax[>["
#: MiniCPM5's control tokens, which are the beginnings of tags (vLLM #43175).
_BEGINNINGS = ("<function", "</function>", "<param", "</param>")
#: Control tokens with a role's name, which some templates build from the role.
_ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "end"))

#: Small templates: one without tools and calls, and those of two families without prompts of their own.
PLAIN = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HERMES = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}""" + PLAIN.replace(
    "<|im_end|>",
    """{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>""",
)
QWEN3 = HERMES.replace(
    "{{ message.content }}",
    """{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}""",
)
#: The control tokens of these three.
SMALL_CONTROLS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")


def paths(shared_data: Path) -> list[Path]:
    return sorted((shared_data / "templates").glob("*/*.jinja"))


def controls(source: str) -> tuple[str, ...]:
    if suffix := _SUFFIX.search(source):
        source = source.replace("{}", suffix[1])
        return tuple(dict.fromkeys((*re.findall(rf"</?[^<>\s]+{suffix[1]}[｜>]+", source), *SPECIAL.values())))
    literals = tuple(dict.fromkeys((*_CONTROL.findall(source), *SPECIAL.values(), *_ROLES)))
    longer = {found[1]: found[1] + "\n" * found[2].count("n") for found in _ENDING_IN_NEWLINES.finditer(source)}
    literals = tuple(longer.get(literal, literal) for literal in literals)
    if '<param name="' in source:
        literals += _BEGINNINGS
    if _MARK in literals:  # each tag after that is text
        literals = tuple(literal for literal in literals if literal not in ("<tool_call>", "</tool_call>"))
    return literals


@functools.cache
def of(path: Path) -> JinjaFormat:
    """The format of the template in a file."""
    source = path.read_text(encoding="utf-8")
    return of_source(source, controls(source))


def of_source(
    source: str,
    literals: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "</s>"),
    *,
    ends: tuple[str, ...] = ("</s>",),
    generic_tools: bool = True,
    response_template: Any = None,
    native: bool = True,
) -> JinjaFormat:
    families = [family() for family in FAMILIES.values()] if native else ()
    return jinja(
        Template(source, SPECIAL),
        literals,
        families,
        ends=ends,
        generic_tools=generic_tools,
        response_template=response_template,
    )
