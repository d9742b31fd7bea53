"""What calls are held to: Dovetail's grammar as a structural tag, by vLLM's own rules of when and how strictly."""

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
#: What xgrammar calls the grammars that it brings, for where Dovetail's does not fit the prompt or has no tokenizer.
XGRAMMARS = {
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


class Prompted(msgspec.Struct, frozen=True):
    """What is known of the prompt. `left_open`: it ends inside a reasoning block; None where vLLM does not show it."""

    left_open: bool | None
    thinking_off: bool


def constrain(request: Any, fmt: Format, tokenizer: Tokenizer | None, level: Any, prompted: Prompted) -> None:
    """Set the request's structural tag, if it is to have one. `level` is the server's --tool-strict-level.

    A tool choice that nothing can hold the model to is refused with `VLLMValidationError`.
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
            _log.debug("tool_choice=auto with a response format: the format is what the answer is held to")
            return
    try:
        if level < ToolStrictLevel.PARAMETER:
            tools = [tool if tool["function"]["name"] in strict else _unpinned(tool) for tool in tools]
        grammar = _grammar(request, fmt, tools, choice, prompted)
        tag = _written(grammar, tokenizer) if grammar is not None and tokenizer is not None else None
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter=error.param) from error
    if tag is not None and _takes_whole(request):
        request._grammar_from_parser = True
    if tag is None:
        tag = _xgrammars(request, fmt, level)
    if tag is None:
        if choice == "auto":
            return
        raise VLLMValidationError(
            f"tool_choice can only be auto or none: nothing can hold {fmt.name} to a call yet", parameter="tool_choice"
        )
    request.structured_outputs = StructuredOutputsParams(structural_tag=tag)
    # A response format would be a second constraint, and there can be one.
    if "response_format" in type(request).model_fields:
        request.response_format = None
    else:
        request.text = None


def _takes_whole(request: Any) -> bool:
    """Whether vLLM can be told that a grammar holds from the first token on, with reasoning in it."""
    return hasattr(request, "_grammar_from_parser")


def _grammar(request: Any, fmt: Format, tools: list[dict[str, Any]], choice: Any, prompted: Prompted) -> Grammar | None:
    """Dovetail's grammar; None for a format or a prompt that there is none for. Raises `InvalidRequest`."""
    if _takes_whole(request):
        if prompted.left_open and fmt.reasoning == "written":
            return None
        thinking = _may_reason(request, fmt, prompted)
    else:
        thinking = [False]
    parallel = request.parallel_tool_calls is not False
    try:
        said = [
            fmt.grammar(tools, tool_choice=choice, thinking=each, parallel_tool_calls=parallel) for each in thinking
        ]
    except InvalidRequest as error:
        if error.param is not None:
            raise
        return None  # no field is to blame: it is the format that has none
    roots = tuple(each.root for each in said if each is not None)
    return Grammar(roots[0] if len(roots) == 1 else Choice(roots)) if roots else None


def _may_reason(request: Any, fmt: Format, prompted: Prompted) -> list[bool]:
    """Whether the answer may begin with reasoning; both answers where vLLM (0.32) does not show the prompt."""
    allowed = not prompted.thinking_off
    left_open = [True, False][not allowed :] if prompted.left_open is None else [prompted.left_open]
    continues = getattr(request, "continue_final_message", False)
    return [*dict.fromkeys(fmt.may_reason(each, thinking=allowed, continues=continues) for each in left_open)]


def _written(grammar: Grammar, tokenizer: Tokenizer) -> str | None:
    try:
        return json.dumps(grammar.structural_tag(tokenizer.control))
    except ValueError as error:
        _log.warning("calls are not held to Dovetail's grammar: %s", error)
        return None


def _unpinned(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool with arguments that may be any."""
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}


def _xgrammars(request: Any, fmt: Format, level: Any) -> str | None:
    """The structural tag that vLLM's own parser for the format would set; it holds from where reasoning ends."""
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag, limit_to_single_tool_call

    model = XGRAMMARS.get(fmt.name)
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
