"""`python -m benchmarks.constraint.accuracy`: how well the demo pair calls tools with the constraint and without it.

The pair answers held-out conversations with known calls at every strict level, greedily and sampled, with speculation.
Turns are compared in pairs of the same conversation and seed, without and with the constraint.
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
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.events import Message, fold
from dovetail.formats.base import Strict
from dovetail.grammar import matcher
from dovetail.tokens import Tokenizer
from training.corpus import Sample, sample
from training.data import FORMAT, HELD_OUT

_LEVELS: tuple[Strict, ...] = get_args(Strict)
_MAX_TOKENS = 256


class Turn(msgspec.Struct, frozen=True):
    """One answer. `asked`: the requested calls. Then the calls of the right tool, those of them with the right
    arguments, whether the answer has exactly the requested calls, and the calls that no tool of the request accepts."""

    asked: int
    tool: int
    right: int
    exact: bool
    invalid: int


def answered(pair: Path, samples: Sequence[Sample], strict: Strict, temperature: float, seed: int) -> list[Turn]:
    """The answers of the pair in the folder `pair` to `samples`."""
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


def _turn(s: Sample, message: Message) -> Turn:
    expected = s.answer_at(s.turn).calls
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in s.tools}
    pairs = [
        (want, got) for want, got in zip_longest(expected, message.calls) if want and got and want.name == got.name
    ]
    right = sum(_json(want.arguments) == _json(got.arguments) for want, got in pairs)
    invalid = sum(not _valid(schemas.get(call.name), call.arguments) for call in message.calls)
    return Turn(len(expected), len(pairs), right, right == len(expected) == len(message.calls), invalid)


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
    """Turns by temperature and level. Sampled turns run `seeds` times."""
    samples = [sample(seed) for seed in range(HELD_OUT, HELD_OUT + conversations)]
    results: dict[tuple[float, Strict], list[Turn]] = {}
    for temperature, times in ((0.0, 1), (1.0, seeds)):
        for strict in _LEVELS:
            results[temperature, strict] = []
            for seed in range(times):
                results[temperature, strict] += answered(pair, samples, strict, temperature, seed)
                tick()
    return results


def rows(results: Mapping[tuple[float, Strict], Sequence[Turn]]) -> list[dict[str, Any]]:
    """A row for each temperature and level. `better`: turns that are exact only with the constraint; `worse`: only
    without it. `chance`: the probability of a difference this large if the constraint changes nothing."""
    lines = []
    for (temperature, strict), turns in results.items():
        before = results[temperature, "off"]
        better = sum(now.exact and not then.exact for now, then in zip(turns, before, strict=True))
        worse = sum(then.exact and not now.exact for now, then in zip(turns, before, strict=True))
        lines.append(
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
    return lines


def _chance(better: int, worse: int) -> float:
    """The probability of a two-sided sign test."""
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
        results = rows(
            measure(options.checkpoints, options.conversations, options.seeds, lambda: progress.advance(bar))
        )
    if options.json:
        print(json.dumps({"options": tables.plain(options), "machine": tables.machine(), "rows": results}, indent=2))
        return
    tables.show([_sheet(results)], [_NOTE], as_markdown=options.markdown, words=("strict",))


_NOTE = (
    "right: calls of the right tool with the right arguments; exact: turns with the calls that were asked for and no "
    "other; better, worse: turns that are exact with the constraint and not without it, and the other way; chance: of "
    "so great a difference where there is none (sign test)."
)


def _sheet(results: Sequence[Mapping[str, Any]]) -> tables.Sheet:
    headings = ["temperature", "strict", "calls", "right tool", "right", "exact", "invalid"]
    lines = []
    for row in results:
        shares = (row["tool"] / row["calls"], row["right"] / row["calls"], row["exact"] / row["turns"])
        beside = ["", "", ""]
        if row["strict"] != "off":
            beside = [str(row["better"]), str(row["worse"]), f"{row['chance']:.2f}"]
        lines.append(
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
    return title, [*headings, "better", "worse", "chance"], lines


if __name__ == "__main__":
    main()
