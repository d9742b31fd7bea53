"""Probes whether an engine drafts: a short completion, and the draft tokens that the engine counts for it.

A drafter that is missing, or that never proposes anything, causes no error. It only costs the speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from dovetail.completion import Completion, EngineInfo, MetricSample, Sampling, TokenBatch, total
from dovetail.errors import DovetailError

TOKENS = 24  # long enough for a prompt lookup too
PATIENCE_S = 6.0  # how long to wait for the counters to change after the answer
_POLL_S = 1.2  # a server's counters are read once a second


class Finding(msgspec.Struct, frozen=True):
    """How many tokens were drafted and accepted, or a warning with the reason why none were."""

    drafted: float = 0
    accepted: float = 0
    warning: str | None = None


class Probed(Protocol):
    """An engine, or one server of an engine."""

    @property
    def info(self) -> EngineInfo: ...

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]: ...

    def gauges(self) -> Sequence[MetricSample]: ...


async def probe(engine: Probed, prompt: tuple[int, ...], method: str | None) -> Finding:
    """Continue `prompt`, the ids of a repetitive text, and count what the engine drafts by `method`.

    Draft tokens of other requests at the same time count too. Raises nothing: a failed probe is a finding with a
    warning.
    """
    drafted = accepted = 0
    before = _counts(engine)
    try:
        async for batch in engine.complete(Completion(prompt, TOKENS, Sampling(temperature=0), request_id="probe")):
            drafted, accepted = drafted + (batch.drafted or 0), accepted + batch.accepted
    except DovetailError as error:
        return Finding(warning=f"the probe failed: {error.message}")
    if drafted:
        return Finding(drafted, accepted)
    deadline, now = asyncio.get_running_loop().time() + PATIENCE_S, _counts(engine)
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_S)
        last, now = now, _counts(engine)
        if now == last and now[0] > before[0]:
            break
    if now[0] > before[0]:
        return Finding(now[0] - before[0], now[1] - before[1])
    return Finding(warning=_reason(engine, method))


def _counts(engine: Probed) -> tuple[float, float]:
    """All draft tokens and accepted tokens so far, over all servers."""
    gauges = engine.gauges()
    return total(gauges, "drafted_total"), total(gauges, "accepted_total")


def _reason(engine: Probed, method: str | None) -> str:
    if not engine.info.draft_tokens:
        return (
            "it has no counters of drafted tokens, so it was started without speculation, or ignored its "
            "--speculative-config"
        )
    if method in ("ngram", "suffix"):
        return f"{method} found nothing to draft in a repetitive text: check prompt_lookup_min"
    return (
        "it counts drafted tokens and drafted none: its drafter is off at this length or load (a limit, a gate), or "
        "proposes nothing"
    )
