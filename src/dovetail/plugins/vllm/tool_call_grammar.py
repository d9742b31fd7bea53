"""Constrains tool calls to Dovetail's grammar, as a structural tag, by vLLM's own rules of when and how strictly."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import vllm.envs as envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format
from dovetail.grammar import Choice, Grammar
from dovetail.plugins.vllm.requests import choice_of, strict_tools, tools_of
from dovetail.tokens import Tokenizer

_log = logging.getLogger("vllm.dovetail")
#: Format -> the name of xgrammar's own grammar, which is used if Dovetail has no tokenizer or none for the prompt.
XGRAMMAR_MODELS = {
    "kimi_k3": "kimi_k3",
    "deepseek_v32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v4_1",
    "qwen3_coder": "qwen_3_coder",
    "glm45": "glm_4_7",
    "glm47": "glm_4_7",
    "minimax_m2": "minimax",
    "llama3_json": "llama",
}


class ReasoningState(msgspec.Struct, frozen=True):
    """Whether the prompt ends inside a reasoning block (None if vLLM does not show the prompt), and whether the request
    turns thinking off."""

    left_open: bool | None
    thinking_off: bool


def constrain(request: Any, fmt: Format, tokenizer: Tokenizer | None, level: Any, state: ReasoningState) -> None:
    """Set the request's structural tag if the request or the server asks for one.

    `level`: the server's --tool-strict-level. Raises `VLLMValidationError` for a tool choice that cannot be enforced.
    """
    tools, choice = tools_of(request), choice_of(request)
    if not tools or choice == "none" or not envs.VLLM_ENFORCE_STRICT_TOOL_CALLING:
        return
    level = ToolStrictLevel.AUTO if level is None else level
    if request.parallel_tool_calls is False:
        level = max(level, ToolStrictLevel.FUNCTION)
    strict = strict_tools(request)
    if choice == "auto":
        if level == ToolStrictLevel.AUTO and not strict:
            return
        if request.extract_structured_outputs() is not None:
            _log.debug("tool_choice=auto with a response format: only the response format is enforced")
            return
    try:
        if level < ToolStrictLevel.PARAMETER:
            tools = [tool if tool["function"]["name"] in strict else _without_schema(tool) for tool in tools]
        grammar = _grammar(request, fmt, tools, choice, state)
        tag = _structural_tag(grammar, tokenizer) if grammar is not None and tokenizer is not None else None
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter=error.param) from error
    if tag is not None and _covers_reasoning(request):
        request._grammar_from_parser = True
    if tag is None:
        tag = _xgrammar_tag(request, fmt, level)
    if tag is None:
        if choice == "auto":
            return
        raise VLLMValidationError(
            f"tool_choice can only be auto or none: no grammar can enforce a call of {fmt.name}",
            parameter="tool_choice",
        )
    request.structured_outputs = StructuredOutputsParams(structural_tag=tag)
    # vLLM takes one constraint for each request, so the response format has to go.
    if "response_format" in type(request).model_fields:
        request.response_format = None
    else:
        request.text = None


def _covers_reasoning(request: Any) -> bool:
    """Whether this request can tell vLLM that a grammar applies from the first token on, reasoning included."""
    return hasattr(request, "_grammar_from_parser")


def _grammar(
    request: Any, fmt: Format, tools: list[dict[str, Any]], choice: Any, state: ReasoningState
) -> Grammar | None:
    """Dovetail's grammar; None if it has none for the format or the prompt. Raises `InvalidRequest`."""
    if _covers_reasoning(request):
        if state.left_open and fmt.reasoning == "written":
            return None
        thinking = _may_reason(request, fmt, state)
    else:
        thinking = [False]
    parallel = request.parallel_tool_calls is not False
    try:
        grammars = [
            fmt.grammar(tools, tool_choice=choice, thinking=each, parallel_tool_calls=parallel) for each in thinking
        ]
    except InvalidRequest as error:
        if error.param is not None:
            raise
        return None  # the format has no grammar, and no field of the request is wrong
    roots = tuple(grammar.root for grammar in grammars if grammar is not None)
    return Grammar(roots[0] if len(roots) == 1 else Choice(roots)) if roots else None


def _may_reason(request: Any, fmt: Format, state: ReasoningState) -> list[bool]:
    """Whether the answer may begin with reasoning: both cases if vLLM (0.32) does not show the prompt."""
    allowed = not state.thinking_off
    left_open = [True, False][not allowed :] if state.left_open is None else [state.left_open]
    continues = getattr(request, "continue_final_message", False)
    return [*dict.fromkeys(fmt.may_reason(each, thinking=allowed, continues=continues) for each in left_open)]


def _structural_tag(grammar: Grammar, tokenizer: Tokenizer) -> str | None:
    try:
        return json.dumps(grammar.structural_tag(tokenizer.control, tokenizer.blanks))
    except ValueError as error:
        _log.warning("Dovetail's grammar cannot constrain the calls: %s", error)
        return None


def _without_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool with a schema that accepts any arguments."""
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}


def _xgrammar_tag(request: Any, fmt: Format, level: Any) -> str | None:
    """The structural tag that vLLM's own parser for the format would set; it applies after the reasoning."""
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag, limit_to_single_tool_call

    model = XGRAMMAR_MODELS.get(fmt.name)
    if model is None:
        return None
    tag = get_model_structural_tag(
        model=model, tools=request.tools, tool_choice=request.tool_choice, reasoning=False, strict_level=level
    )
    if tag is None:
        return None
    if request.parallel_tool_calls is False:
        limit_to_single_tool_call(tag)
    return json.dumps(tag.model_dump())
