"""The side that is the same for every reader: times it, checks what it read, and talks to the parent in JSON lines.

Runs inside each reader's own environment, so it needs nothing but the standard library. A worker module defines a
function `load() -> (versions, open)` and hands it to `serve`; `open(job)` gives a function that starts a stream.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

from benchmarks import jobs
from benchmarks.jobs import Job

#: What one delta came to, whatever the reader calls it: ("content", 0, text), ("reasoning", 0, text),
#: ("name", call, text) or ("arguments", call, fragment).
Piece = tuple[str, int, str]


@dataclass(frozen=True)
class Stream:
    """One output being read. `feed` and `last` return whatever the reader returns; `read` makes pieces of that."""

    feed: Callable[[str, Any], Any]
    last: Callable[[str, Any], Any]
    read: Callable[[Any], Iterable[Piece]]


Open = Callable[[], Stream]
Typical = Callable[[Sequence[float]], float]
_CHUNK = 128  # deltas between two looks at the clock


def timed(start: Open, deltas: Sequence[Sequence[Any]], limit: float) -> tuple[float, int]:
    """CPU seconds for one output, and the deltas it got through; fewer than all means that the limit came first."""
    stream = start()
    feed = stream.feed
    begin = process_time()
    for at in range(0, len(deltas) - 1, _CHUNK):
        for text, ids in deltas[at : min(at + _CHUNK, len(deltas) - 1)]:
            feed(text, ids)
        if process_time() - begin > limit:
            return process_time() - begin, at + _CHUNK
    stream.last(*deltas[-1])
    return process_time() - begin, len(deltas)


def watched(start: Open, deltas: Sequence[Sequence[Any]], limit: float) -> tuple[float, int, list[list[Piece]]]:
    """As `timed`, and the pieces of every delta."""
    stream = start()
    feed = stream.feed
    returned: list[Any] = []
    begin = process_time()
    for at in range(0, len(deltas) - 1, _CHUNK):
        returned += [feed(text, ids) for text, ids in deltas[at : min(at + _CHUNK, len(deltas) - 1)]]
        if process_time() - begin > limit:
            break
    else:
        returned.append(stream.last(*deltas[-1]))
    return process_time() - begin, len(returned), [list(stream.read(item)) for item in returned]


def silence(deltas: Sequence[Sequence[Any]], pieces: Sequence[Iterable[Piece]], span: Sequence[int]) -> int:
    """The longest run of the argument's characters that went in while no fragment of arguments came out."""
    longest = run = at = 0
    for (text, _), out in zip(deltas, pieces, strict=True):
        if any(kind == "arguments" and fragment for kind, _, fragment in out):
            run = 0
        else:
            run += max(0, min(at + len(text), span[1]) - max(at, span[0]))
            longest = max(longest, run)
        at += len(text)
    return longest


def fault(pieces: Iterable[Piece], expected: dict[str, Any]) -> str | None:
    """What is wrong with what was read: the calls, their arguments, content or reasoning; None when nothing is.

    Whitespace at either end of content and reasoning is not compared: templates differ in whose it is.
    """
    answer = gathered(pieces)
    if [call["name"] for call in answer["calls"]] != [call["name"] for call in expected["calls"]]:
        return "calls"
    for got, wanted in zip(answer["calls"], expected["calls"], strict=True):
        try:
            # As text, because to Python true is 1 and 1.0 is 1.
            same = _canonical(json.loads(got["arguments"])) == _canonical(wanted["arguments"])
        except ValueError:
            same = False
        if not same:
            return "arguments"
    for kind in ("content", "reasoning"):
        if answer[kind].strip() != expected[kind].strip():
            return kind
    return None


def gathered(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Pieces as one answer: content, reasoning, and calls with their names and arguments."""
    answer: dict[str, Any] = {"content": "", "reasoning": ""}
    calls: dict[int, dict[str, str]] = {}
    for kind, index, text in pieces:
        if kind in answer:
            answer[kind] += text
        else:
            call = calls.setdefault(index, {"name": "", "arguments": ""})
            call[kind] += text
    return answer | {"calls": [calls[index] for index in sorted(calls)]}


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def making(start: Open, typical: Typical, budget: float = 0.02) -> float:
    """CPU seconds for a reader to be made, typical of five rounds, each of 0.02 s or one reader at least."""
    rounds = []
    for _ in range(5):
        begin, made = process_time(), 0
        while not made or process_time() - begin < budget:
            start()
            made += 1
        rounds.append((process_time() - begin) / made)
    return typical(rounds)


def speed(start: Open, job: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds for one output and for making a reader (medians, or of the fastest run if the job says so), the
    longest silence and what was wrong.

    The first run is watched and not counted, unless it takes so long that it is the only one.
    """
    deltas, limit = job["deltas"], job["limit"]
    typical: Typical = min if job["fastest"] else statistics.median
    seconds, done, pieces = watched(start, deltas, limit)
    if done < len(deltas):
        return {"over": seconds, "characters": sum(len(text) for text, _ in deltas[:done])}
    found = {
        "silence": silence(deltas, pieces, job["span"]),
        "fault": fault((piece for out in pieces for piece in out), job["expected"]),
    }
    del pieces
    runs = [] if seconds > job["budget"] else [seconds]
    spent = 0.0
    while runs and (spent < job["budget"] or len(runs) < 6) and len(runs) < 1000:
        took, _ = timed(start, deltas, limit)
        spent += took
        runs.append(took)
    seconds = typical(runs[1:]) if runs else seconds
    return {"seconds": seconds, "runs": max(1, len(runs) - 1), "making": making(start, typical), **found}


def splits(start: Open, job: dict[str, Any]) -> dict[str, Any]:
    """How many of the outputs were read wrong, by what was wrong, and the first of them."""
    faults: Counter[str] = Counter()
    first: dict[str, Any] | None = None
    begin = process_time()
    done = 0
    for number, (deltas, expected) in enumerate(job["outputs"]):
        if process_time() - begin > job["limit"]:
            break
        done += 1
        pieces: list[Piece] = []
        try:
            read_into(pieces, start, deltas)
            wrong = fault(pieces, expected)
        except Exception as error:
            wrong = "error"
            pieces.append(("error", 0, repr(error)))
        if wrong is not None:
            faults[wrong] += 1
            first = first or {"number": number, "fault": wrong, "read": pieces[:50], "expected": expected}
    return {
        "of": done,
        "asked": len(job["outputs"]),
        "wrong": sum(faults.values()),
        "faults": dict(faults),
        "first": first,
    }


def read_into(pieces: list[Piece], start: Open, deltas: Sequence[Sequence[Any]]) -> None:
    """Read one output, delta by delta, and add what comes out to `pieces`."""
    stream = start()
    for text, ids in deltas[:-1]:
        pieces += stream.read(stream.feed(text, ids))
    pieces += stream.read(stream.last(*deltas[-1]))


def readings(start: Open, job: dict[str, Any]) -> dict[str, Any]:
    """What is read in each output; {"error": why} where the reader fails."""
    answers: list[dict[str, Any]] = []
    for deltas, _ in job["outputs"]:
        pieces: list[Piece] = []
        try:
            read_into(pieces, start, deltas)
            answers.append(gathered(pieces))
        except Exception as error:
            answers.append({"error": repr(error)[:200]})
    return {"readings": answers}


def serve(load: Callable[[], tuple[dict[str, str], Callable[[Job], Open]]]) -> None:
    """Answer jobs until standard input ends."""

    def loaded() -> tuple[Job, Callable[[Job], Job]]:
        versions, open_family = load()
        return {"versions": versions}, functools.partial(_answer, open_family)

    jobs.serve(loaded)


def _answer(open_family: Callable[[Job], Open], job: Job) -> Job:
    start = open_family(job)
    # What was there before the first delta is not the reader's: as servers do once they are up, it is taken out of the
    # collector's sight. What the reader itself makes is collected as always.
    gc.collect()
    gc.freeze()
    return {"speed": speed, "splits": splits, "readings": readings}[job["task"]](start, job)
