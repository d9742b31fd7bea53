"""From when tokens came to figures: speeds, how many tokens come at once, bytes read, and where answers differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.cases import Reads

#: What `measure.Log` notes of a step: seconds, and the tokens of each sequence.
Line = tuple[float, Sequence[int]]


@dataclass(frozen=True)
class Run:
    """One set of answers. Speeds are new tokens per second over all sequences."""

    whole: float
    decode: float
    length: float
    bytes_per_second: float


def run(log: Sequence[Line], prompts: Sequence[Sequence[int]], tokens: int, reads: Reads) -> Run:
    """Decoding begins when every sequence has its first of `tokens` tokens and ends when one has its last."""
    first = next(i for i, (_, counts) in enumerate(log) if min(counts) > 0)
    last = next(i for i, (_, counts) in enumerate(log) if max(counts) == tokens)
    if last <= first:
        raise ValueError(f"{tokens} tokens are too few: one answer was whole before another began")
    (since, before), (until, after) = log[first], log[last]
    new, steps, took = sum(after) - sum(before), last - first, until - since
    context = statistics.mean(map(len, prompts)) + (sum(before) + sum(after)) / 2 / len(prompts)
    return Run(
        whole=sum(log[-1][1]) / log[-1][0],
        decode=new / took,
        length=new / steps / len(prompts),
        bytes_per_second=steps * reads.step(len(prompts), context) / took,
    )


def median(runs: Sequence[Run]) -> Run:
    """Each figure's own median."""
    names = ("whole", "decode", "length", "bytes_per_second")
    return Run(**{name: statistics.median(getattr(one, name) for one in runs) for name in names})


def first_difference(answers: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Which sequence differs first, and where; a shorter one differs where it ends."""
    found: list[tuple[int, int]] = []
    for number, (one, other) in enumerate(zip(answers, others, strict=True)):
        if list(one) != list(other):
            pairs = enumerate(zip(one, other, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
            found.append((place, number))
    if not found:
        return None
    place, number = min(found)
    return number, place
