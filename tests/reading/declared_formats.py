"""Formats of the tests, one for each way of declaring calls that no registered format uses. The laws try them all."""

from __future__ import annotations

from typing import Any

from dovetail.formats.base import ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.formats.declared.named_calls import NamedCalls
from dovetail.formats.derived import generic
from dovetail.formats.response_templates.families import families
from tests.formats import response_templates


class Named(DeclaredFormat):
    """As Solar writes calls."""

    name = "named_calls"
    controls = ("<|think|>", "<|/think|>", "<|calls|>", "<|/calls|>", "<|call|>", "<|name|>", "<|args|>", "<|/call|>")
    end_of_turn = ("<|end|>",)
    reasoning_block = "<|think|>{reasoning}<|/think|>"
    calls = NamedCalls("<|calls|>{calls}<|/calls|>", "<|call|>{id}<|name|>{name}<|args|>{arguments}<|/call|>")


class NamedInText(DeclaredFormat):
    """As Llama 3.1 writes calls to its user's own functions."""

    name = "named_in_text"
    reasoning: ReasoningBlock = "none"
    controls = ("<|tag|>",)
    end_of_turn = ("<|eot|>",)
    calls = NamedCalls("{call}", "<function={name}>{arguments}</function>", between="\n")


class SectionKeyTags(DeclaredFormat):
    """As Hunyuan 3 and 4 write calls."""

    name = "section_key_tags"
    controls = (
        *("<think>", "</think>", "<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<tool_sep>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )
    end_of_turn = ("<|end|>",)
    calls = TagCalls(
        section="<tool_calls>\n{calls}</tool_calls>",
        call="<tool_call>{name}<tool_sep>\n{parameters}</tool_call>\n",
        parameter="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    )


#: How models without tools in their templates write calls, whose tags are ordinary text.
Generic = generic.family((), ("<|end|>",))


def _by_response_template(name: str, spec: Any, *controls: str) -> Any:
    """The family that a response template declares, called `name`."""
    family, _ = next(families(spec, controls, ("<|im_end|>",)))
    return type("ByResponseTemplate", (family,), {"name": name})


Listed = _by_response_template("response_template_json", response_templates.COHERE, *response_templates.COHERE_CONTROLS)
InTags = _by_response_template("response_template_tags", response_templates.QWEN35, "<tool_call>", "</tool_call>")

DECLARED: dict[str, type[DeclaredFormat]] = {
    kind.name: kind for kind in (Named, NamedInText, SectionKeyTags, Generic, Listed, InTags)
}
