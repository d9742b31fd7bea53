"""`python -m benchmarks.forgetful.histories`: adversarial histories against the oracle. Exits with 1 for one fault."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from dovetail.gateway.records.memory import Memory
from tests.gateway.forgetful import World, returned

#: Histories of each world, and the conversations in it.
_HISTORIES, _CONVERSATIONS = 200, 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        for number in range(-(-arguments.histories // _HISTORIES)):
            rng = Random(f"{arguments.seed} {number}")
            world = World(rng, Memory(Path(folder) / f"{number}.db", b"k" * 32))
            for _ in range(_CONVERSATIONS):
                world.converse(rng.randint(1, 5))
            for history in itertools.islice(returned(world), _HISTORIES):
                counts["histories"] += 1
                for message, found, right in zip(
                    history.messages, world.recalled(history), world.expected(history), strict=True
                ):
                    if message["role"] == "assistant":
                        counts["turns"] += 1
                        counts["put back"] += found is not None
                        counts["own text"] += found is None
                        counts["put back wrongly"] += found is not None and found != right
                        counts["missed"] += found is None and right is not None
            world.memory.close()
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()), f"in {time.monotonic() - began:.0f} s")
    return 1 if counts["put back wrongly"] or counts["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
