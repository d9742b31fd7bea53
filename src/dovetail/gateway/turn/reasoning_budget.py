"""How many tokens of reasoning an answer may have, and the constraint that ends it there."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.formats.answers.tool_choice import requires_call
from dovetail.formats.turn import Turn
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.grammar.bounded_reasoning import BoundedReasoning
from dovetail.grammar.matcher import Matcher
from dovetail.tokens import Tokenizer

#: Reasoning before a required call leaves 1 / this of the answer's tokens for the call, but no more than so many.
_FOR_A_CALL, _MOST_FOR_A_CALL = 4, 4_096


class Bounded(NamedTuple):
    """The constraint of an answer, and the field of the request whose budget nothing enforces ("": none)."""

    constraint: Matcher | BoundedReasoning | None
    unenforced: str = ""


def bounded(
    matcher: Matcher | None,
    request: TurnRequest,
    max_tokens: int,
    language: Turn,
    tokenizer: Tokenizer,
    *,
    enforces: bool,
    default: int | None = None,
) -> Bounded:
    """The constraint of `matcher` and of the budget for reasoning in an answer of at most `max_tokens`.

    `enforces`: whether the engine enforces a constraint. `default`: the budget of a request without one. Nothing can
    end the reasoning of a format without a control token for that.
    """
    budget, field = reasoning_budget(request, max_tokens, default)
    if budget is None or not (language.left_open or language.may_reason):
        return Bounded(matcher)
    markers = language.format.reasoning_tokens(tokenizer) if enforces else None
    if markers is None:
        return Bounded(matcher, field)
    return Bounded(BoundedReasoning(matcher, tokenizer, markers, budget, left_open=language.left_open))


def reasoning_budget(request: TurnRequest, max_tokens: int, default: int | None) -> tuple[int | None, str]:
    """The most tokens of reasoning in an answer of at most `max_tokens`, and the field that says so, if one does.

    Reasoning before a required call also has to leave room for that call.
    """
    budget, field = request.reasoning_limit
    if budget is None and not field:
        budget = default
    if not requires_call(request.tool_choice):
        return budget, field
    left = max_tokens - min(max_tokens // _FOR_A_CALL, _MOST_FOR_A_CALL)
    return left if budget is None else min(budget, left), field
