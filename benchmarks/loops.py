"""What a token costs the detector of loops, beside the reading of that token: `python -m benchmarks.loops`.

Each text comes token by token, to the detector and to the reader that the gateway has; the best of `_RUNS` runs counts.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.tables import Row, machine, show
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway.turn.loops import LoopDetector
from dovetail.tokens import Tokenizer
from dovetail.tokens import tokenizer as load_tokenizer

_ROOT = Path(__file__).parents[1]
_RUNS = 5


def texts(tokenizer: Tokenizer, count: int) -> dict[str, list[int]]:
    """`count` tokens of each kind of text."""
    page = (_ROOT / "docs/http.md").read_text(encoding="utf-8")
    kinds = {
        "prose and tables": page * (count // len(page) * 8 + 1),
        "rows of JSON": "".join(f'{{"id": {n}, "tags": []}},\n' for n in range(count)),
        "zeros": "0, " * count,
        "one sentence for ever": "Wait, let me think about that again. " * count,
    }
    drawn = random.Random(0)
    few = [*tokenizer.encode("a"), *tokenizer.encode("!")]
    return {kind: [*tokenizer.encode(text[: count * 8])][:count] for kind, text in kinds.items()} | {
        "two tokens at random": drawn.choices(few, k=count)
    }


def seconds(feed: Callable[[], Callable[[tuple[int]], object]], ids: Sequence[int]) -> float:
    """The least seconds for a token."""
    best = float("inf")
    for _ in range(_RUNS):
        take = feed()
        begin = time.perf_counter()
        for token in ids:
            take((token,))
        best = min(best, time.perf_counter() - begin)
    return best / len(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=_ROOT / "src/dovetail/data/demo/target")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.tokenizer)
    rows: list[Row] = []
    for kind, ids in texts(tokenizer, arguments.tokens).items():
        detecting = seconds(lambda: LoopDetector(tokenizer).feed, ids)
        reading = seconds(lambda: functools.partial(KimiK25().reader(tokenizer=tokenizer).feed, ""), ids)
        detector = LoopDetector(tokenizer)
        detector.feed(ids)
        rows.append([kind, f"{detecting * 1e6:.2f}", f"{reading * 1e6:.1f}", f"{len(detector.finish())}"])
    headings = ["text", "detecting, µs a token", "reading, µs a token", "loops"]
    note = f"{machine()}; {arguments.tokens} tokens of {arguments.tokenizer.name}, one at a time."
    show([("Detecting loops", headings, rows)], [note], as_markdown=arguments.markdown, words=("text",))


if __name__ == "__main__":
    main()
