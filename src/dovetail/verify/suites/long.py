"""Suite `long`: calls at the end of long prompts, from 1k tokens to the endpoint's context.

Truncation, caches and positions fail only there. Each prompt is filler with one city named in it (the needle) at a
depth, and asks at its end for the weather there. The endpoint's own count of the prompt's tokens shows whether the
prompt was cut. A model that loses the needle among a few lines is not tested.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.client.endpoint import Endpoint, Exchange, Target
from dovetail.client.not_tested import NotTested
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.suites.base import (
    Case,
    Checked,
    Figure,
    Finding,
    Suite,
    load_cases,
    need_complete,
    prompt_tokens,
    share,
)

_FILLER = "Line {number} of the log has nothing in it that matters.\n"
_SAMPLE = 20  # lines whose tokens are counted, to know how many lines make a length
_ROOM = 512  # tokens of the context that are left for tools and answer


class _Scale(NamedTuple):
    """Tokens of a line of filler, and of the request without filler."""

    per_line: float
    empty: int


class Long(Suite):
    """`cases` have the length in tokens and the depth of the needle, from 0 to 1, in `expect`."""

    name = "long"
    needs = ("tools",)

    def __init__(self) -> None:
        self._scales: dict[Endpoint, _Scale | NotTested] = {}
        self._lock = asyncio.Lock()

    def cases(self) -> Sequence[Case]:
        return load_cases("long.json")

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        length, context = case.expect["tokens"], target.features.context
        if context is None and length > case.expect["unknown_context"]:
            raise NotTested("it does not tell its context (max_model_len in /v1/models)", blocking=False)
        if context is not None and length > context - _ROOM:
            raise NotTested(f"its context of {context} tokens is shorter", blocking=False)
        scale = await self._measured(target)
        lines = int((length - scale.empty) / scale.per_line)
        expected = scale.empty + lines * scale.per_line
        exchange = await target.answer(_filled(case, lines))
        counted = prompt_tokens(exchange)
        measures = {"tokens": counted, "length": length}
        if counted < 0.9 * expected:
            what = f"a prompt of about {expected:.0f} tokens has {counted}: it was cut"
            return Checked((Finding(what, "prompt", exchange, decided=True),), measures)
        need_complete(exchange)
        return Checked(tuple(_findings(case, exchange, counted)), measures)

    async def _measured(self, target: Target) -> _Scale:
        """The scale of an endpoint, measured once. Raises `NotTested` if its model loses the needle in a few lines."""
        async with self._lock:
            if target.endpoint not in self._scales:
                self._scales[target.endpoint] = await self._measure(Target(target.endpoint))
        scale = self._scales[target.endpoint]
        if isinstance(scale, NotTested):
            raise scale
        return scale

    async def _measure(self, target: Target) -> _Scale | NotTested:
        shortest = self.cases()[0].cluster
        try:
            for case in (case for case in self.cases() if case.cluster == shortest):
                empty = await target.answer({**_filled(case, 0), "max_tokens": 1})
                little = await target.answer(_filled(case, _SAMPLE))
                tokens = prompt_tokens(little)
                if _findings(case, little, tokens):
                    raise NotTested(f"its model answers wrong after {tokens} tokens already", blocking=False)
            scale = _Scale((tokens - prompt_tokens(empty)) / _SAMPLE, prompt_tokens(empty))
            if scale.per_line <= 0:
                raise NotTested("by its count, longer prompts have no more tokens", blocking=False)
        except NotTested as reason:
            return reason
        return scale

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        lengths = sorted({outcome.measures["length"] for outcome in outcomes})
        at = {length: [each.passed for each in outcomes if each.measures["length"] == length] for length in lengths}
        return {f"passed at {length} tokens": share(sum(passed), len(passed)) for length, passed in at.items()}


def _filled(case: Case, lines: int) -> dict[str, Any]:
    """The case's request with filler before its question, and the needle in the filler."""
    at = round(lines * case.expect["depth"])
    log = [_FILLER.format(number=number) for number in range(lines)]
    log.insert(at, case.expect["needle"] + "\n")
    *earlier, last = case.request["messages"]
    return {**case.request, "messages": [*earlier, {**last, "content": "".join(log) + last["content"]}]}


def _findings(case: Case, exchange: Exchange, counted: int) -> list[Finding]:
    calls = exchange.answer.message.calls
    if not calls:  # although one is required
        return [Finding(f"no call after {counted} tokens", "reader", exchange, "schema")]
    wanted = case.expect["city"]
    try:
        city = json.loads(calls[0].arguments).get("city")
    except (ValueError, AttributeError, RecursionError):
        city = None
    if city == wanted:
        return []
    what = f"after {counted} tokens the call is of {calls[0].arguments:.80} and not of {wanted}"
    return [Finding(what, "reader", exchange, "model")]
