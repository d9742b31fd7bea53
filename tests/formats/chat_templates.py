"""Published chat templates, with control tokens as their tokenizers have them."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from dovetail.formats.jinja import JinjaFormat, jinja
from dovetail.formats.registry import FAMILIES
from dovetail.formats.template import Template

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_TAGS = "think|tool_call|tool_response|arg_key|arg_value|seed:think|minimax:tool_call|start_of_turn|end_of_turn"
_WORDS = "INST|TOOL_CALLS|THINK|AVAILABLE_TOOLS|TOOL_RESULTS|ARGS|CALL_ID|TOOL_CONTENT|SYSTEM_PROMPT"
#: Literals of control tokens, without brackets that a template may build from words of the request.
_CONTROL = re.compile(rf"<\|[^<>|'\"\s]+\|?>|<｜[^｜<>]+｜>|｜DSML｜|</?(?:{_TAGS})>|\[/?(?:{_WORDS})\]|\[e~\[|\]~b\]")
#: Control tokens with a role's name, which some templates build from the role.
_ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "end"))


def paths(shared_data: Path) -> list[Path]:
    return sorted((shared_data / "templates").glob("*/*.jinja"))


def controls(source: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_CONTROL.findall(source), *SPECIAL.values(), *_ROLES)))


@functools.cache
def of(path: Path) -> JinjaFormat:
    """The format of the template in a file."""
    source = path.read_text(encoding="utf-8")
    return of_source(source, controls(source))


def of_source(source: str, literals: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "</s>")) -> JinjaFormat:
    families = [family() for family in FAMILIES.values()]
    return jinja(Template(source, SPECIAL), literals, families, ends=("</s>",))
