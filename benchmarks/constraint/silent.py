"""`python -m benchmarks.constraint.silent`: a model that wants to end its turn before it has said anything.

Models of random weights, whose ends of reasoning and of turns are made likelier, answer `--asks` requests each at
temperature 1, with tools and `tool_choice: auto`, through the embedded engine and the format's own reader: once where
an answer may be silent, and once under the guard. Counted are the silent answers of both runs, how often the guard
refused an end, and the answers that were not silent and that the guard changed all the same, of which there must be
none.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from rich.progress import track

from benchmarks import tables
from benchmarks.constraint import forced
from dovetail.completion import Completion, Sampling
from dovetail.events import Message, fold
from dovetail.grammar import matcher
from dovetail.grammar.guard import Guarded

FAMILIES = (
    *("kimi_k2", "kimi_k25", "kimi_k3", "deepseek_v31", "deepseek_v4"),
    *("glm47", "qwen3", "minimax_m2", "harmony", "mistral"),
)
_MOST_TOKENS = 96
#: How much likelier the end becomes, in logits: from a few silent answers to most.
_WANTS_TO_END = (0.0, 4.0, 8.0, 12.0)


class Answer(NamedTuple):
    """`ids`: with the end. `ended`: whether the turn ended within its limit. `refused`: how often an end was."""

    ids: tuple[int, ...]
    ended: bool
    refused: int


async def _answer(model: forced.Model, constraint: Any, number: int) -> Answer:
    bias = _WANTS_TO_END[number % len(_WANTS_TO_END)]
    nothing = model.format.write(Message(), thinking=True).segments
    quiet = {model.tokenizer.control[segment.text] for segment in nothing if segment.control}
    sampling = Sampling(seed=number, logit_bias=dict.fromkeys(quiet, bias))
    # Drafts would make the number of random numbers depend on what other requests do.
    completion = Completion(model.prompts[0], _MOST_TOKENS, sampling, constraint=constraint.another(), draft_tokens=0)
    ids: list[int] = []
    refused, ended = 0, False
    async with aclosing(cast(Any, model.engine.complete(completion))) as batches:
        async for batch in batches:
            ids += batch.ids
            refused += batch.guarded
            ended = batch.finish == "stop"
    return Answer(tuple(ids), ended, refused)


def silent(model: forced.Model, answer: Answer) -> bool:
    """Whether the answer has ended and says nothing."""
    reader = model.format.reader(forced.TOOLS, tokenizer=model.tokenizer)
    return answer.ended and not fold([*reader.feed("", [*answer.ids]), *reader.finish()]).says_something


def measured(family: str, asks: int) -> tuple[int, int, int, int]:
    """Of `asks` answers: silent ones without and with the guard, refused ends, and answers changed for nothing."""
    with forced.random_weights(family, "auto", thinking=True) as model:
        grammars = (model.format.grammar(forced.TOOLS, thinking=True, silent=it) for it in (True, False))
        may_be, speaking = (matcher.compile(cast(Any, each), model.tokenizer, model.ends) for each in grammars)
        runs = []
        for name, constraint in (("may be silent", may_be), ("guarded", Guarded(speaking, may_be))):
            ticks = iter(track(range(asks), f"{family}, {name}"))
            answer = functools.partial(_answer, model, constraint)
            runs.append(asyncio.run(forced.answers(model, asks, answer, functools.partial(next, ticks, None))))
        counts = [sum(silent(model, answer) for answer in run) for run in runs]
        refused = sum(answer.refused for answer in runs[1])
        # An answer whose end was not refused is the same.
        changed = sum(one.ids != other.ids for one, other in zip(*runs, strict=True) if not other.refused)
        changed += sum(not silent(model, one) for one, other in zip(*runs, strict=True) if other.refused)
        return counts[0], counts[1], refused, changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=1000)
    parser.add_argument("--families", nargs="+", default=FAMILIES, metavar="NAME")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows, failed = [], 0
    for family in arguments.families:
        counts = measured(family, arguments.asks)
        rows.append([family, *map(str, counts)])
        failed += counts[1] + counts[3]
    headings = ["family", "silent", "silent under the guard", "ends refused", "changed for nothing"]
    notes = [f"{arguments.asks} answers a row; {tables.machine()}"]
    tables.show([("Silent answers", headings, rows)], notes, as_markdown=arguments.markdown, words=headings[:1])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
