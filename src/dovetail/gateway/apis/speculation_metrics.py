"""`metrics.speculative_decoding`: what a request's drafting came to, in the shape of vLLM, which AIPerf reads.

https://docs.vllm.ai/en/v0.32.0/features/speculative_decoding/acceptance_metrics/. Steps without draft tokens do not
count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.gateway.apis.extensions import MeasuredExtension
from dovetail.gateway.turn.turn import Turn


class Drafts(NamedTuple):
    """The draft tokens of one step."""

    drafted: int
    accepted: int


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """Histograms list steps by their accepted draft tokens, from 0; that `by_draft_length` has one for each number of
    draft tokens. `mean_acceptance_length` counts the token that every step adds."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    acceptance_histogram_by_draft_length: dict[str, list[int]]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int] | UnsetType = UNSET
    per_step_drafted: list[int] | UnsetType = UNSET


class Metrics(msgspec.Struct, frozen=True):
    """The response's `metrics` field."""

    speculative_decoding: SpeculativeDecoding | None


def asked_for(turn: Turn) -> bool:
    """Whether the request asks for metrics."""
    extension = turn.request.extension
    return isinstance(extension, MeasuredExtension) and extension.metrics is not None


def metrics(turn: Turn, steps: Sequence[Sequence[Drafts]]) -> Metrics | UnsetType:
    """The metrics of a response, `steps` being those of each choice; UNSET if the request does not ask for them.

    As in vLLM, they are null for several choices, and for an engine that does not draft. They also are for an engine
    behind HTTP, which does not report single steps.
    """
    extension = turn.request.extension
    if not isinstance(extension, MeasuredExtension) or extension.metrics is None:
        return UNSET
    if len(steps) > 1 or not turn.most_drafts:
        return Metrics(None)
    return Metrics(speculative_decoding(steps[0], turn.most_drafts, detailed=extension.metrics == "detailed"))


def speculative_decoding(steps: Sequence[Drafts], most: int, *, detailed: bool = False) -> SpeculativeDecoding:
    """The metrics of the steps with draft tokens, of which there are at most `most` in a step."""
    steps = [step for step in steps if step.drafted]
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    lengths = sorted({step.drafted for step in steps})
    return SpeculativeDecoding(
        mean_acceptance_length=1 + accepted / len(steps) if steps else 1.0,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_histogram=_histogram(steps, most),
        acceptance_histogram_by_draft_length={
            str(length): _histogram([step for step in steps if step.drafted == length], length) for length in lengths
        },
        num_spec_steps=len(steps),
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_tokens=most,
        per_step_accepted=[step.accepted for step in steps] if detailed else UNSET,
        per_step_drafted=[step.drafted for step in steps] if detailed else UNSET,
    )


def _histogram(steps: Sequence[Drafts], most: int) -> list[int]:
    counts = Counter(step.accepted for step in steps)
    return [counts[accepted] for accepted in range(most + 1)]
