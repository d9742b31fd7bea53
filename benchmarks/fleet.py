"""`python -m benchmarks.fleet TRACE`: how gateways spread recorded traffic over replicas, simulated.

TRACE is a recording in the format of Mooncake's published traces: on each line the time in ms, the lengths of prompt
and answer in tokens, and the ids of the prompt's blocks of 512 tokens (https://github.com/kvcache-ai/Mooncake,
FAST25-release/traces).

A replica prefills one prompt at a time, without the blocks that it has cached, and then decodes the answer beside
others. It keeps the blocks that were used last. Of a replica, a gateway knows what it sent there itself, and once a
second how many requests run there. In the second half two replicas leave, two join, and one is three times slower.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

from benchmarks import tables
from dovetail.backends.remote import routing

BLOCK = 512
#: A conversation is known by so many blocks: the first one is nearly the same for all requests of these traces.
BEGINNING = 2
#: Tokens prefilled in a second; seconds for a token of an answer alone, and how much more beside each other answer.
PREFILL, DECODE_S, BATCHED = 20_000, 0.012, 1 / 64
SLOWER = 3.0


class Request(NamedTuple):
    at: float  # seconds
    blocks: tuple[int, ...]
    prompt: int
    answer: int


@dataclass
class Replica:
    most_blocks: int
    slowness: float = 1.0
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    running: int = 0
    worked: float = 0.0

    def take(self, request: Request) -> tuple[int, float, float]:
        """The cached tokens of the prompt, and when the first and the last token of the answer come."""
        cached = 0
        for block in request.blocks:
            if block not in self.blocks:
                break
            cached += BLOCK
        cached = min(cached, request.prompt - 1)
        for block in request.blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.most_blocks:
            self.blocks.popitem(last=False)
        prefill = (request.prompt - cached) / PREFILL * self.slowness
        self.free_at = max(self.free_at, request.at) + prefill
        self.worked += prefill
        decode = request.answer * DECODE_S * (1 + self.running * BATCHED) * self.slowness
        self.running += 1
        return cached, self.free_at, self.free_at + decode


class Gateway:
    """Chooses replicas. `sent`: what it runs on each; `others`: what else ran there when it looked last."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.chosen = 0

    def load(self, name: str) -> int:
        return self.sent[name] + self.others[name]


Policy = Callable[[Gateway, Request, Sequence[str]], str]


def hashing(gateway: Gateway, request: Request, names: Sequence[str]) -> str:
    preferred = routing.order(repr(request.blocks[:BEGINNING]).encode(), names)
    return routing.choose({name: gateway.load(name) for name in names}, preferred)


def least_load(gateway: Gateway, request: Request, names: Sequence[str]) -> str:
    return min(random.sample(names, len(names)), key=gateway.load)


def round_robin(gateway: Gateway, request: Request, names: Sequence[str]) -> str:
    return names[gateway.chosen % len(names)]


POLICIES: dict[str, Policy] = {
    "hashing, bounded load": hashing,
    "least load": least_load,
    "round robin": round_robin,
}


class Outcome(NamedTuple):
    """The share of all prompts' tokens that was cached, seconds to the first token of each answer, and how much more
    than the average the busiest replica worked."""

    cached: float
    first: list[float]
    balance: float


def simulate(
    requests: Sequence[Request], policy: Policy, gateways: int, replicas: int, blocks: int, *, changes: bool
) -> Outcome:
    """Send `requests` through so many gateways, each by one of them at random, to so many replicas of `blocks`."""
    random.seed(0)
    fleet = {f"10.0.0.{i}:8000": Replica(blocks) for i in range(replicas)}
    names, doors = [*fleet], [Gateway() for _ in range(gateways)]
    ends: list[tuple[float, int, Gateway, str]] = []
    cached, first, looked = 0, [], 0.0
    for number, request in enumerate(requests):
        if changes and number == len(requests) // 2:
            joining = {f"10.0.1.{i}:8000": Replica(blocks) for i in range(2)}
            fleet |= joining
            names = [*names[2:], *joining]
            fleet[names[0]].slowness = SLOWER
        while ends and ends[0][0] <= request.at:
            _, _, gateway, name = heapq.heappop(ends)
            gateway.sent[name] -= 1
            fleet[name].running -= 1
        if request.at - looked >= 1:
            looked = request.at
            for gateway in doors:
                gateway.others = Counter({name: fleet[name].running - gateway.sent[name] for name in names})
        gateway = random.choice(doors)
        name = policy(gateway, request, names)
        had, begins, ended = fleet[name].take(request)
        gateway.sent[name] += 1
        gateway.chosen += 1
        heapq.heappush(ends, (ended, number, gateway, name))
        cached += had
        first.append(begins - request.at)
    work = [fleet[name].worked for name in names]
    return Outcome(cached / sum(request.prompt for request in requests), first, max(work) / mean(work))


def recorded(path: Path, faster: float) -> list[Request]:
    """The requests of a trace, so many times faster."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Request(row["timestamp"] / 1000 / faster, tuple(row["hash_ids"]), row["input_length"], row["output_length"])
        for row in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--replicas", type=int, default=16, metavar="N")
    parser.add_argument("--gateways", type=int, default=4, metavar="N")
    parser.add_argument("--faster", type=float, default=4.0, metavar="X", help="than it was recorded")
    parser.add_argument("--blocks", type=int, default=1000, metavar="N", help="that a replica caches")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    requests = recorded(arguments.trace, arguments.faster)
    sheets = [
        (
            title,
            ["policy", "gateways", "cached", "TTFT p50 s", "p99 s", "busiest"],
            [*_rows(arguments, requests, changes)],
        )
        for title, changes in (("all replicas alike", False), ("two leave, two join, one is slower", True))
    ]
    note = f"{len(requests)} requests, {arguments.replicas} replicas of {arguments.blocks} blocks"
    tables.show(sheets, [note], as_markdown=arguments.markdown, words={"policy"})
    return 0


def _rows(arguments: argparse.Namespace, requests: Sequence[Request], changes: bool) -> Iterator[tables.Row]:
    for name, policy in POLICIES.items():
        for gateways in dict.fromkeys((1, arguments.gateways)):
            outcome = simulate(requests, policy, gateways, arguments.replicas, arguments.blocks, changes=changes)
            percentiles = quantiles(outcome.first, n=100)
            times = (f"{percentiles[49]:.2f}", f"{percentiles[98]:.2f}")
            yield [name, str(gateways), f"{outcome.cached:.1%}", *times, f"{outcome.balance:.2f}"]


if __name__ == "__main__":
    raise SystemExit(main())
