"""Holds a request to the limits of its key: models, answers, new tokens, and tokens a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from dovetail.errors import Forbidden, InvalidRequest
from dovetail.gateway.limits.accounts import Account, Reservation
from dovetail.gateway.limits.api_key import KeyLimits
from dovetail.gateway.turn.observer import Observer
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


@contextmanager
def metered(turn: Turn, account: Account) -> Iterator[Observer]:
    """Reserves the tokens that `turn` may take. What it yields counts those that the turn takes.

    Raises `RateLimited`.
    """
    with account.reserved(turn.prompt_tokens + _asked(turn, account.limits)) as reservation:
        meter = _Meter(reservation, turn.prompt_tokens)
        try:
            yield meter
        except asyncio.CancelledError:
            meter.use(0)  # the engine may have computed the prompt
            raise


class _Meter(Observer):
    """Counts the tokens of a turn. `prompt`: those of its prompts, which count once."""

    def __init__(self, reservation: Reservation, prompt: int) -> None:
        self._reservation = reservation
        self._prompt = prompt

    def step(self, step: Step) -> None:
        self.use(len(step.ids))

    def use(self, completion: int) -> None:
        """Count new tokens, and the prompt if it was not counted before."""
        self._reservation.use(self._prompt, completion)
        self._prompt = 0


def _asked(turn: Turn, limits: KeyLimits) -> int:
    """The new tokens that the request asks for. One without any limit asks for none in particular."""
    if turn.request.max_tokens is None and limits.max_tokens is None:
        return 0
    return turn.max_tokens * len(turn.choices)
