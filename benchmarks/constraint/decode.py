"""The speed of the demo pair with the constraint and without it, and the steps that forced strings save.

Every run produces the same tokens: answers to held-out conversations are greedy, and only those count that are the same
with the constraint and without it. Runs take turns within each batch of answers. Prefill steps do not count.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.engine.cases import DEMO
from benchmarks.tables import Sheet
from dovetail.completion import Completion, Constraint, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.settings import LOOKUP, EngineSettings
from dovetail.grammar import Grammar, matcher
from dovetail.tokens import Tokenizer
from tests.engine.drafters import Nothing
from training.corpus import sample
from training.data import FORMAT, HELD_OUT

#: The goal: the speed with the constraint relative to the speed without it.
GOAL = 0.97
NOTE = (
    "Greedy, all answers to their end, the same tokens in all columns; decode: without the steps that compute prompts; "
    "ratios are medians of turns. new: tools that no request had before; again: tools of an earlier request."
)
_SEED = HELD_OUT + 20_000
_LONGEST = 256
#: The largest number of drafts that the gate may choose.
_MOST = 8
_WAYS = ("without", "again", "new")


@dataclass(frozen=True)
class _Answer:
    """A prompt, the grammar of its answer, and the ids of its answer."""

    prompt: tuple[int, ...]
    grammar: Grammar
    ids: tuple[int, ...]


@dataclass(frozen=True)
class _Run:
    tokens: int
    steps: int  # of every sequence
    seconds: float
    ids: list[tuple[int, ...]]
    counts: tuple[int, int]  # forced, and of these accepted


def measure(
    checkpoints: Path = DEMO,
    *,
    batches: Sequence[int] = (1, 4, 16),
    drafts: int = 3,
    answers: int = 32,
    repeats: int = 5,
    note: Callable[[str], None] = lambda produced: None,
) -> list[dict[str, Any]]:
    """A row for each batch size and way of drafting: none, always `drafts`, and by the gate. `note` is called with the
    progress."""
    pair = _Pair(checkpoints, max(batches))
    chosen, share = pair.answers(answers)
    engines = {
        "off": pair.engine(None, 0),
        f"K={drafts}": pair.engine(checkpoints / "drafter", drafts),
        "gated": pair.engine(checkpoints / "drafter", drafts, max_draft_tokens=_MOST, gate="measured"),
    }
    rows = []
    for batch, (drafting, core) in itertools.product(batches, engines.items()):
        groups = [chosen[i : i + batch] for i in range(0, len(chosen), batch)]
        turns: list[dict[str, list[_Run]]] = []
        for turn in range(-1, repeats):  # the first warms up, and is not counted
            note(f"batch {batch}, {drafting}, turn {turn + 1}")
            runs: dict[str, list[_Run]] = {way: [] for way in _WAYS}
            for number, group in enumerate(groups):
                first = (turn + number) % len(_WAYS)
                for way in (*_WAYS[first:], *_WAYS[:first]):
                    runs[way].append(_run(core, group, pair.constraints(group, way)))
            if turn >= 0:
                turns.append(runs)
        rows.append({"batch": batch, "drafting": drafting, "answers": len(chosen), "same": share} | _row(turns))
    return rows


def forced(checkpoints: Path = DEMO, *, drafts: int = 3, answers: int = 32) -> list[dict[str, Any]]:
    """A row for each drafter: the steps of constrained answers with forced strings and without. The counts are the same
    on every machine."""
    pair = _Pair(checkpoints, answers)
    chosen, _ = pair.answers(answers)
    rows = []
    sources: dict[str, Path | str] = {"eagle3": checkpoints / "drafter", "lookup": LOOKUP, "none": LOOKUP}
    for name, source in sources.items():
        steps = []
        for alone in (True, False):
            core = pair.engine(source, drafts)
            drafter = core.models.drafter
            assert isinstance(drafter, Forced)
            if alone:
                drafter = drafter._drafter
            elif name == "none":
                drafter = Forced(Nothing())
            if alone and name == "none":
                core = pair.engine(None, 0)
            else:
                core.scheduler.drafter = drafter
            steps.append(_run(core, chosen, pair.constraints(chosen, "again")))
        own, both = steps
        rows.append(
            {
                "drafter": name,
                "tokens": both.tokens,
                "steps": own.steps,
                "steps_forced": both.steps,
                "forced": both.counts[0],
                "stood": both.counts[1],
            }
        )
    return rows


def sheets(rows: Sequence[dict[str, Any]], saved: Sequence[dict[str, Any]]) -> Iterator[Sheet]:
    """Both results as tables."""
    speeds = [
        [
            f"{row['batch']}",
            row["drafting"],
            *(f"{row[way]:,.0f}" for way in _WAYS),
            *(f"{row[way + '_ratio']:.3f}" for way in _WAYS[1:]),
            *(f"{row['tokens_per_step'][way]:.2f}" for way in _WAYS[:2]),
        ]
        for row in rows
    ]
    headings = ["batch", "drafting", *_WAYS, "again/without", "new/without", "tokens a step without", "with"]
    share = f"{rows[0]['same']:.0%}" if rows else "?"
    yield f"decode tokens/s ({share} of answers are the same with and without, which these are)", headings, speeds
    strings = [
        [
            row["drafter"],
            f"{row['tokens']:,}",
            f"{row['steps']:,}",
            f"{row['steps_forced']:,}",
            f"{1 - row['steps_forced'] / row['steps']:.1%}",
            f"{row['forced']:,}",
            f"{row['stood']:,}",
            f"{row['stood'] / row['tokens']:.1%}",
        ]
        for row in saved
    ]
    headings = ["drafter", "tokens", "steps", "with forced strings", "saved", "forced", "stood", "of all tokens"]
    yield "steps with and without forced strings", headings, strings


class _Pair:
    """The checkpoints of the demo pair, and its requests."""

    def __init__(self, checkpoints: Path, batch: int) -> None:
        self._target = checkpoints / "target"
        self._tokenizer: Tokenizer = dovetail.tokenizer(self._target)
        self._batch = batch
        self._eos_ids: tuple[int, ...] = ()

    def engine(self, drafter: Path | str | None, drafts: int, **options: Any) -> LLMCore:
        """An engine that computes the prompts of a whole batch in one step."""
        # No prefix caching, because the same prompts are run again.
        sizes: dict[str, Any] = {"max_batch": self._batch, "max_batched_tokens": 16_384, "prefix_caching": False}
        core = LLMCore.load(
            self._target, drafter, self._tokenizer, EngineSettings(draft_tokens=drafts, threads=1, **sizes, **options)
        )
        self._eos_ids = core.info.eos_ids
        return core

    def constraints(self, answers: Sequence[_Answer], way: str) -> list[Constraint | None]:
        """Compiled constraints. "new" ones have never been used, because copies share the state that a library builds
        while it runs."""
        if way == "without":
            return [None] * len(answers)
        if way == "new":
            matcher.COMPILED.clear()
        return [matcher.compile(answer.grammar, self._tokenizer, self._eos_ids) for answer in answers]

    def answers(self, count: int) -> tuple[list[_Answer], float]:
        """`count` answers with the same tokens with the constraint and without it, and their share of all answers."""
        core, answered, seen = self.engine(None, 0), list[_Answer](), 0
        samples = (s for s in map(sample, itertools.count(_SEED)) if s.tools)
        while len(answered) < count:
            requested = []
            for s in itertools.islice(samples, self._batch):
                grammar = FORMAT.grammar(s.tools, thinking=s.thinking)
                assert grammar is not None
                prompt = FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(self._tokenizer)
                requested.append(_Answer(tuple(prompt), grammar, ()))
            free, bound = (_run(core, requested, self.constraints(requested, way)).ids for way in ("without", "again"))
            for answer, ids, others in zip(requested, free, bound, strict=True):
                seen += 1
                if ids == others and ids[-1] in self._eos_ids:
                    answered.append(_Answer(answer.prompt, answer.grammar, ids))
        return answered[:count], len(answered) / seen


def _run(core: LLMCore, answers: Sequence[_Answer], constraints: Sequence[Constraint | None]) -> _Run:
    """Run all answers at once. The time starts when every answer has its first token."""
    ids: list[list[int]] = [[] for _ in answers]
    before = core.counters().forced, core.counters().forced_accepted
    for number, (answer, constraint) in enumerate(zip(answers, constraints, strict=True)):
        sampling = Sampling(temperature=0.0)
        core.add(str(number), Completion(answer.prompt, _LONGEST, sampling=sampling, constraint=constraint))
    tokens = steps = 0
    seconds = 0.0
    gc.collect()
    while core.live:
        started = time.perf_counter()
        outcomes = core.step()
        elapsed = time.perf_counter() - started
        decoded = all(ids[int(name)] for name, _ in outcomes)
        for name, outcome in outcomes:
            if not isinstance(outcome, TokenBatch):
                raise outcome
            ids[int(name)] += outcome.ids
            steps += decoded
            tokens += decoded * len(outcome.ids)
        seconds += elapsed * decoded
    for answer, produced in zip(answers, ids, strict=True):
        if answer.ids and tuple(produced) != answer.ids:
            raise ValueError("an answer has other tokens than before")
    after = core.counters().forced, core.counters().forced_accepted
    counts = after[0] - before[0], after[1] - before[1]
    return _Run(tokens, steps, seconds, [tuple(produced) for produced in ids], counts)


def _row(turns: Sequence[dict[str, list[_Run]]]) -> dict[str, Any]:
    """Speeds, and their ratios to "without" turn by turn; medians."""
    seconds = {way: [sum(run.seconds for run in runs[way]) for runs in turns] for way in _WAYS}
    tokens = {way: sum(run.tokens for run in turns[0][way]) for way in _WAYS}
    row: dict[str, Any] = {"tokens": tokens["without"]}
    for way in _WAYS:
        row[way] = tokens[way] / statistics.median(seconds[way])
    for way in _WAYS[1:]:
        # The answers are the same, but the prefill steps, which do not count, have more or fewer of their tokens.
        ratios = [
            (tokens[way] / own) / (tokens["without"] / plain)
            for own, plain in zip(seconds[way], seconds["without"], strict=True)
        ]
        row[way + "_ratio"], row[way + "_ratios"] = statistics.median(ratios), ratios
    row["tokens_per_step"] = {
        way: statistics.median(
            sum(run.tokens for run in runs[way]) / sum(run.steps for run in runs[way]) for runs in turns
        )
        for way in _WAYS
    }
    return row
