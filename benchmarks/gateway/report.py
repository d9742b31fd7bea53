"""The figures as tables: a row for each front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.tables import Row, Sheet

#: Headings of columns that hold words.
WORDS = ("front end", "why")

_Cells = Mapping[str, Mapping[str, float]]


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """CPU a token, requests of one token, held streams, and what could not be run."""
    fronts: Sequence[Mapping[str, Any]] = [front for front in results["fronts"] if "cells" in front]
    tokens = results["options"]["tokens"]
    streams = [
        ("1", "1 whole"),
        ("32", "32 whole"),
        ("256", "256 whole"),
        ("32, in turn", "32 0"),
        ("32, slow", "32 20"),
    ]
    load = f"CPU of the front end in µs a token, streams of {tokens} tokens at once"
    return [
        (
            load,
            ["front end", *(heading for heading, _ in streams)],
            _rows(fronts, [_one(key, "cpu_us", ".0f") for _, key in streams]),
        ),
        (
            "Tokens/s if each process had a core: 1 s / µs of its busiest process",
            ["front end", *(heading for heading, _ in streams[:3])],
            _rows(fronts, [_rate(key) for _, key in streams[:3]]),
        ),
        (
            "One token, one request after the other: ms",
            ["front end", "p50, new", "p99, new", "p50, kept", "CPU, new"],
            _rows(
                fronts,
                [
                    _one("single new", "p50_ms", ".1f"),
                    _one("single new", "p99_ms", ".1f"),
                    _one("single kept", "p50_ms", ".1f"),
                    _one("single new", "cpu_ms", ".1f"),
                ],
            ),
        ),
        (
            f"{results['options']['held']:,} streams held, a token a second each",
            ["front end", "KiB a stream", "/health p50 ms", "/health p99 ms"],
            _rows(
                fronts,
                [
                    _one("held", "memory_kb", ".0f"),
                    _one("held", "health_p50_ms", ".1f"),
                    _one("held", "health_p99_ms", ".1f"),
                ],
            ),
        ),
        (
            "Not measured",
            ["front end", "why"],
            [[front["name"], why] for front in results["fronts"] for why in front["missing"]],
        ),
    ]


def notes(results: Mapping[str, Any]) -> list[str]:
    """What the tables were measured with."""
    versions = ", ".join(f"{front['name']} {front['version']}" for front in results["fronts"] if front.get("version"))
    before, after = results["load"]
    turns, peer_turns = (results["options"][name] for name in ("turns", "peer_turns"))
    return [
        f"{results['machine']}; load average {before:.1f} before and {after:.1f} after; {versions}.",
        "Whole: an answer arrives in one piece, each token an event and a chunk of its own. In turn: one write a "
        "token, without a pause. Slow: a token of each stream every 20 ms, so that nothing can be joined. Medians of "
        f"{turns} turns (of other front ends: {peer_turns}). Every answer was compared with what the upstream sent. "
        "vLLM's API server has its own engine behind it and no other upstream: only the process in front is counted.",
    ]


def _rows(fronts: Sequence[Mapping[str, Any]], columns: Sequence[Callable[[_Cells], str]]) -> list[Row]:
    return [[front["name"], *(column(front["cells"]) for column in columns)] for front in fronts]


def _one(cell: str, figure: str, form: str) -> Callable[[_Cells], str]:
    return lambda cells: format(cells[cell][figure], form) if cell in cells else "–"


def _rate(cell: str) -> Callable[[_Cells], str]:
    return lambda cells: f"{1e6 / cells[cell]['busiest_us']:,.0f}" if cells.get(cell, {}).get("busiest_us") else "–"
