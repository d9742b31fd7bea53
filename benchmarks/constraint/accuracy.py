"""`python -m benchmarks.constraint.accuracy`: whether the demo pair calls as well with the constraint as without it.

Held-out conversations whose right calls are known are answered at every level of strictness, greedily and sampled, with
speculation on. Turns are compared in pairs: the same conversation, the same seed, without and with the constraint.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
from rich.console import Console

import dovetail
from benchmarks import tables
from benchmarks.constraint.weights import DEMO
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.conversation import Message
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.events import fold
from dovetail.formats.base import Strict
from dovetail.grammar import matcher
from dovetail.tokens import Tokenizer
from training.corpus import Sample, sample
from training.data import FORMAT, HELD_OUT

_LEVELS: tuple[Strict, ...] = get_args(Strict)
_MAX_TOKENS = 256


class Turn(msgspec.Struct, frozen=True):
    """One answer: calls asked for, those of the right tool, of these those with the right arguments; whether it made
    these and no other; calls that no tool of the request takes."""

    asked: int
    tool: int
    right: int
    exact: bool
    invalid: int


def answered(pair: Path, samples: Sequence[Sample], strict: Strict, temperature: float, seed: int) -> list[Turn]:
    """What the pair in the folder `pair` says to each of `samples`."""
    tokenizer = dovetail.tokenizer(pair / "target")
    core = LLMCore.load(pair / "target", pair / "drafter", tokenizer, EngineSettings(draft_tokens=3, threads=1))
    ids: dict[str, list[int]] = {}
    for number, s in enumerate(samples):
        grammar = FORMAT.grammar(s.tools, strict=strict, thinking=s.thinking)
        completion = Completion(
            prompt=tuple(FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(tokenizer)),
            max_tokens=_MAX_TOKENS,
            sampling=Sampling(temperature=temperature, seed=seed * len(samples) + number),
            constraint=matcher.compile(grammar, tokenizer, core.info.eos_ids) if grammar else None,
        )
        ids[str(number)] = []
        core.add(str(number), completion)
    while core.live:
        for request_id, outcome in core.step():
            if not isinstance(outcome, TokenBatch):
                raise outcome
            ids[request_id] += outcome.ids
    core.close()
    return [_turn(s, _read(s, ids[str(number)], tokenizer)) for number, s in enumerate(samples)]


def _read(s: Sample, ids: Sequence[int], tokenizer: Tokenizer) -> Message:
    reader = FORMAT.reader(s.tools, thinking=s.thinking, tokenizer=tokenizer)
    return fold([*reader.feed("", ids), *reader.finish("length" if len(ids) == _MAX_TOKENS else "stop")])


def _turn(s: Sample, said: Message) -> Turn:
    wanted = s.said(s.turn).calls
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in s.tools}
    pairs = [(want, got) for want, got in zip_longest(wanted, said.calls) if want and got and want.name == got.name]
    right = sum(_json(want.arguments) == _json(got.arguments) for want, got in pairs)
    invalid = sum(not _valid(schemas.get(call.name), call.arguments) for call in said.calls)
    return Turn(len(wanted), len(pairs), right, right == len(wanted) == len(said.calls), invalid)


def _valid(schema: Mapping[str, Any] | None, arguments: str) -> bool:
    return schema is not None and jsonschema.Draft202012Validator(schema).is_valid(_json(arguments))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # what no arguments are


def measure(
    pair: Path, conversations: int, seeds: int, tick: Callable[[], None] = lambda: None
) -> dict[tuple[float, Strict], list[Turn]]:
    """Turns by temperature and level; sampled ones `seeds` times over."""
    samples = [sample(seed) for seed in range(HELD_OUT, HELD_OUT + conversations)]
    found: dict[tuple[float, Strict], list[Turn]] = {}
    for temperature, times in ((0.0, 1), (1.0, seeds)):
        for strict in _LEVELS:
            found[temperature, strict] = []
            for seed in range(times):
                found[temperature, strict] += answered(pair, samples, strict, temperature, seed)
                tick()
    return found


def rows(found: Mapping[tuple[float, Strict], Sequence[Turn]]) -> list[dict[str, Any]]:
    """A row for each temperature and level. `better` and `worse` are turns that are exact with the constraint and not
    without it, and the other way; `chance` is how likely so great a difference of the two is where there is none."""
    told = []
    for (temperature, strict), turns in found.items():
        before = found[temperature, "off"]
        better = sum(now.exact and not then.exact for now, then in zip(turns, before, strict=True))
        worse = sum(then.exact and not now.exact for now, then in zip(turns, before, strict=True))
        told.append(
            {
                "temperature": temperature,
                "strict": strict,
                "turns": len(turns),
                "calls": sum(turn.asked for turn in turns),
                "tool": sum(turn.tool for turn in turns),
                "right": sum(turn.right for turn in turns),
                "exact": sum(turn.exact for turn in turns),
                "invalid": sum(turn.invalid for turn in turns),
                "better": better,
                "worse": worse,
                "chance": _chance(better, worse),
            }
        )
    return told


def _chance(better: int, worse: int) -> float:
    """Of a sign test, both ways."""
    n, k = better + worse, min(better, worse)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constraint.accuracy", description=__doc__)
    parser.add_argument("--checkpoints", type=Path, default=DEMO, help="a folder with target/ and drafter/")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3, help="how often each is sampled")
    parser.add_argument("--json", action="store_true", help="print figures, not a table")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    with tables.progress(Console(stderr=True)) as progress:
        bar = progress.add_task("answers", total=len(_LEVELS) * (1 + options.seeds))
        found = rows(measure(options.checkpoints, options.conversations, options.seeds, lambda: progress.advance(bar)))
    if options.json:
        print(json.dumps({"options": tables.plain(options), "machine": tables.machine(), "rows": found}, indent=2))
        return
    tables.show([_sheet(found)], [_NOTE], as_markdown=options.markdown, words=("strict",))


_NOTE = (
    "right: calls of the right tool with the right arguments; exact: turns with the calls that were asked for and no "
    "other; better, worse: turns that are exact with the constraint and not without it, and the other way; chance: of "
    "so great a difference where there is none (sign test)."
)


def _sheet(found: Sequence[Mapping[str, Any]]) -> tables.Sheet:
    headings = ["temperature", "strict", "calls", "right tool", "right", "exact", "invalid"]
    told = []
    for row in found:
        shares = (row["tool"] / row["calls"], row["right"] / row["calls"], row["exact"] / row["turns"])
        beside = ["", "", ""]
        if row["strict"] != "off":
            beside = [str(row["better"]), str(row["worse"]), f"{row['chance']:.2f}"]
        told.append(
            [
                f"{row['temperature']:g}",
                row["strict"],
                f"{row['calls']:,}",
                *(f"{share:.1%}" for share in shares),
                f"{row['invalid']:,}",
                *beside,
            ]
        )
    title = "Calls of the demo pair on held-out conversations, speculation on"
    return title, [*headings, "better", "worse", "chance"], told


if __name__ == "__main__":
    main()
