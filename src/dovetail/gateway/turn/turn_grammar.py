"""The grammar that an answer has to follow, given the request and how its prompt ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.formats.answers.tool_choice import Strict
from dovetail.formats.base import Format
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, Grammar, Loosened, Maybe, Node


def turn_grammar(
    request: TurnRequest, fmt: Format, tools: Sequence[dict[str, Any]], *, strict: Strict, left_open: bool
) -> Grammar | None:
    """The grammar of the answer; None when anything may come.

    Without tools and a response format, it only keeps a call from beginning. That is left out with `strict` "off",
    where it would end an answer that `ignore_eos` or `min_tokens` keep open, and where the prompt does not end as the
    grammar expects.

    `tools` are those that may be called, `strict` is the level of those without one of their own. `left_open`: the
    prompt ends inside a reasoning block. Raises `InvalidRequest` where a grammar is needed and the format has none, and
    `SchemaRefused`.
    """
    free = is_free(request, tools)
    opens_answer = request.add_generation_prompt or request.continue_final_message
    if free and (strict == "off" or request.ignore_eos or request.min_tokens or not opens_answer):
        return None
    grammar = fmt.grammar(
        tools,
        tool_choice="none" if free else request.tool_choice,
        strict=strict,
        thinking=fmt.may_reason(left_open, thinking=request.thinking, continues=request.continue_final_message),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=request.response_format,
    )
    return None if free and grammar and not can_follow(grammar, request, fmt, left_open) else grammar


def is_free(request: TurnRequest, tools: Sequence[dict[str, Any]]) -> bool:
    """Whether the request asks for plain text, without tools and a response format."""
    return not tools and not request.structured and request.tool_choice in (None, "auto", "none")


def check_can_follow(grammar: Grammar, request: TurnRequest, fmt: Format, left_open: bool) -> None:
    """Raise `InvalidRequest` if `grammar`, which describes a whole answer, does not fit after this prompt."""
    if not can_follow(grammar, request, fmt, left_open):
        raise InvalidRequest(
            f"answers of {fmt.name} that go on from where this prompt ends cannot be constrained yet: leave out "
            "response_format, and leave out the tools or set dovetail.strict to off",
            param="continue_final_message" if request.continue_final_message else "dovetail.strict",
        )


def can_follow(grammar: Grammar, request: TurnRequest, fmt: Format, left_open: bool) -> bool:
    """Whether `grammar`, which describes a whole answer, also holds after this prompt.

    It does not in two cases. The prompt ends inside a reasoning block that the model is expected to open itself. Or the
    prompt ends inside an answer's content, and either a response format constrains that content or answers begin with a
    header rather than with text.
    """
    if left_open:
        return fmt.reasoning != "written"
    return not request.continue_final_message or not (request.structured or _has_header(grammar.root))


def _has_header(node: Node) -> bool:
    """Whether everything that `node` derives begins with a control token or a fixed literal."""
    match node:
        case ControlToken() | ExactText():
            return True
        case Loosened(item):
            return _has_header(item)
        case Choice(options):
            return all(map(_has_header, options))
        case Concat(items):
            for item in items:
                if not _has_header(item.item if isinstance(item, Maybe) else item):
                    return False
                if not isinstance(item, Maybe):
                    return True
    return False
