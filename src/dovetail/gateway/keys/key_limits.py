"""Holds a request to the limits of its key: models, answers, new tokens, and tokens a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from dovetail.errors import Forbidden, InvalidRequest
from dovetail.gateway.keys.accounts import Account
from dovetail.gateway.keys.api_key import KeyLimits
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import TurnRequest


def check_model(model: str, account: Account | None) -> None:
    """Raise `Forbidden` if the key does not allow `model`."""
    if account is not None and not may_use(model, account):
        raise Forbidden(f"the key {account.name!r} may not use the model {model!r:.80}", param="model")


def may_use(model: str, account: Account | None) -> bool:
    """Whether the key allows `model`."""
    return account is None or account.limits.models is None or model in account.limits.models


def limited(request: TurnRequest, limits: KeyLimits) -> TurnRequest:
    """`request` with the limits on its answers. Raises `InvalidRequest`, which names the field, for more than those.

    A request without `max_tokens` gets the key's, and so does one whose API cuts `max_tokens` to what is possible.
    """
    answers = request.choices * max(1, len(request.prompts))
    if limits.n is not None and answers > limits.n:
        raise InvalidRequest(
            f"this key may ask for {limits.n} answers in one request, and not for {answers}", param="n"
        )
    most = limits.max_tokens
    if most is not None and not request.fit_max_tokens and (request.max_tokens or 0) > most:
        field = request.max_tokens_field
        raise InvalidRequest(f"{field} is {request.max_tokens}, and this key may ask for {most}", param=field)
    return msgspec.structs.replace(request, most_tokens=most)


def metered(steps: AsyncGenerator[Step], turn: Turn, account: Account | None) -> AsyncGenerator[Step]:
    """`steps`, with the tokens that they may take reserved, and those that they take counted.

    Raises `RateLimited` before the first step.
    """
    return steps if account is None else _metered(steps, turn, account)


async def _metered(steps: AsyncGenerator[Step], turn: Turn, account: Account) -> AsyncGenerator[Step]:
    prompt = turn.prompt_tokens
    with account.reserved(prompt + _asked(turn, account.limits)) as reservation:
        try:
            async for step in steps:
                reservation.use(prompt, len(step.ids))
                prompt = 0
                yield step
        except asyncio.CancelledError:
            reservation.use(prompt, 0)  # the engine may have computed it
            raise


def _asked(turn: Turn, limits: KeyLimits) -> int:
    """The new tokens that the request asks for. One without any limit asks for none in particular."""
    if turn.request.max_tokens is None and limits.max_tokens is None:
        return 0
    return turn.max_tokens * len(turn.choices)
