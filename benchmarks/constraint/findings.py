"""The results of a proof: finished calls by what is wrong with them, and the tables of these counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks import tables


class Findings(msgspec.Struct):
    """The counts of one format and level.

    `refused`: schemas that have no grammar, with the reason. `left`: calls that violate only keywords that the lint
    lists; `named` counts them by schema and keyword. `invalid`: calls that violate another keyword. `undeclared`: calls
    of a tool that the request does not have. `forced`: those of the `drafted` tokens that the grammar forced."""

    format: str
    strict: str
    schemas: int = 0
    refused: dict[str, str] = {}
    calls: int = 0
    valid: int = 0
    left: int = 0
    named: dict[str, int] = {}
    invalid: list[str] = []
    undeclared: list[str] = []
    fewer: dict[str, int] = {}
    cut_off: int = 0
    failed: dict[str, int] = {}
    defects: dict[str, int] = {}
    completions: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    seconds: float = 0.0

    @property
    def proved(self) -> bool:
        return not (self.invalid or self.undeclared or self.failed)


WORDS = ("format", "strict")


def sheet(results: Sequence[Findings]) -> tables.Sheet:
    """A row for each format and level."""
    headings = ["format", "strict", "schemas", "refused", "calls", "valid", "left", "invalid", "undeclared", "failed"]
    headings += ["cut off", "tokens", "accepted", "seconds"]
    rows = []
    for it in results:
        counts = (it.schemas, len(it.refused), it.calls, it.valid, it.left, len(it.invalid))
        counts += (len(it.undeclared), sum(it.failed.values()), it.cut_off, it.tokens)
        share = f"{it.accepted / max(it.drafted, 1):.0%} of {it.drafted:,}"
        rows.append([it.format, it.strict, *(f"{count:,}" for count in counts), share, f"{it.seconds:.0f}"])
    return "Calls of random weights, sampled at temperature 1, speculation on", headings, rows


def notes(results: Sequence[Findings]) -> Iterator[str]:
    """Details that the rows do not have: schemas, keywords and faults."""
    yield (
        "left: calls that break a keyword that the lint says is left to the check; cut off: answers that max_tokens "
        "ended, whose last call does not count; accepted: of the tokens that were drafted."
    )
    for it in results:
        level = f"{it.format}, {it.strict}"
        yield from (f"{level}: refused: {name}: {why}" for name, why in it.refused.items())
        yield from (f"{level}: left to the check: {place}: {count} calls" for place, count in it.named.items())
        yield from (f"{level}: only {count} calls were finished: {name}" for name, count in it.fewer.items())
        yield from (f"{level}: INVALID: {what}" for what in it.invalid[:20])
        yield from (f"{level}: UNDECLARED: {name}" for name in it.undeclared[:20])
        yield from (f"{level}: FAILED {count} times: {why}" for why, count in it.failed.items())
        if it.defects:
            yield f"{level}: what the reader noted: " + ", ".join(f"{n} {kind}" for kind, n in it.defects.items())
