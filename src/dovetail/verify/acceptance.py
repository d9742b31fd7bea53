"""How many drafts an endpoint accepts at each position of a step, by its own counts.

SGLang counts the drafts of each answer by position, and Dovetail their sum. vLLM counts the drafts of all its answers,
in /metrics, which is read before and after each case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.client.draft_counters import Reading
from dovetail.client.endpoint import Exchange

#: The most positions that are shown. No drafter proposes as many tokens for a step.
_POSITIONS = 64


class Acceptance(msgspec.Struct, frozen=True):
    """`steps`: the steps that were counted. `tokens`: what they put out. `drafted`, `accepted`: for each position of a
    step, the drafts there.

    Raises `ValueError` for counts that cannot be, because an endpoint may count what it likes.
    """

    steps: int = 0
    tokens: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        pairs = [*zip(self.accepted, self.drafted, strict=True)]
        if min(self.steps, self.tokens) < 0 or not all(0 <= accepted <= drafted for accepted, drafted in pairs):
            raise ValueError("no counts of drafts")


def of_answer(exchange: Exchange) -> Acceptance:
    """What the answer itself counts; nothing if it does not."""
    try:
        response = json.loads(exchange.answer.raw)
        if counts := (response.get("sglext") or {}).get("spec_tokens_details"):
            return _of_sglang(counts)
        return _of_dovetail(response["usage"])
    except (
        ValueError,
        AttributeError,
        TypeError,
        LookupError,
        RecursionError,
    ):  # of another shape, which is no fault of an answer
        return Acceptance()


def _of_dovetail(usage: Mapping[str, Any]) -> Acceptance:
    """From the usage, which has no counts by position."""
    return Acceptance(int(usage["speculation"]["steps"]), int(usage["completion_tokens"]))


def _of_sglang(counts: Mapping[str, Any]) -> Acceptance:
    """From a histogram: how many steps accepted 0, 1, 2, … drafts. Each step drafts as many."""
    steps, histogram = int(counts["spec_verify_ct"]), counts["spec_correct_drafts_histogram"]
    positions = range(min(int(counts["spec_num_proposed_drafts"]) // steps if steps else 0, _POSITIONS))
    accepted = tuple(int(sum(histogram[i + 1 :])) for i in positions)
    return Acceptance(steps, steps + sum(accepted), (steps,) * len(positions), accepted)


def between(pairs: Iterable[Sequence[Reading]]) -> Acceptance:
    """What was counted while at least one case ran, from the readings before and after each case.

    Cases run side by side, so their times overlap, and what is counted twice belongs to both. A case in which the
    counters fell, because the server was started again, is left out.
    """
    grown: list[Reading] = []
    latest: Reading = [0]
    for before, after in sorted(pairs, key=lambda pair: pair[0][0]):
        start = max(before, latest, key=lambda each: each[0])
        if after[0] > start[0] and len(after) == len(start):
            grown.append([end - begin for begin, end in zip(start, after, strict=True)])
            latest = after
    steps, *accepted = _sums(grown) or (0,)
    try:
        return Acceptance(steps, steps + sum(accepted), (steps,) * len(accepted), tuple(accepted))
    except ValueError:  # counters that do not belong together
        return Acceptance()


def added(parts: Sequence[Acceptance]) -> Acceptance:
    """The sums of all parts."""
    return Acceptance(
        sum(each.steps for each in parts),
        sum(each.tokens for each in parts),
        _sums([each.drafted for each in parts]),
        _sums([each.accepted for each in parts]),
    )


def _sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sums of each place of the rows, which may be of different lengths."""
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0)))
