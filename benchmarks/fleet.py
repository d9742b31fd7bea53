"""`python -m benchmarks.fleet TRACE`: how gateways spread recorded traffic over replicas, in simulation.

TRACE is a recording of requests in the format of Mooncake's published traces: on each line the time in ms, the lengths of
prompt and answer in tokens, and the ids of the prompt's blocks of 512 tokens
(https://github.com/kvcache-ai/Mooncake, FAST25-release/traces).

A replica prefills one prompt at a time, without the blocks that it has cached, and then decodes it beside others. It
keeps the blocks that were used last. Of a replica, each gateway knows what it sent there itself, and once a second how
much runs there. Halfway through, two replicas leave, two others join, and one becomes three times slower.
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
from statistics import mean

from benchmarks.tables import Sheet
from dovetail.backends.remote import routing

BLOCK = 512
#: A conversation begins with so many blocks: in these traces the first one is the same for all.
BEGINNING = 2
PREFILL, DECODE_S = 20_000, 0.012  # tokens a second; seconds for a token of one answer alone
BATCHED = 1 / 64  # how much longer a token takes beside each other answer


@dataclass
class Request:
    at: float
    blocks: tuple[int, ...]
    prompt: int
    answer: int


@dataclass
class Replica:
    name: str
    capacity: int
    slowness: float = 1.0
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    running: int = 0
    worked: float = 0.0

    def take(self, request: Request, now: float) -> tuple[int, float, float]:
        """The cached tokens of the prompt, when its first token comes and when its last."""
        cached = 0
        for block in request.blocks:
            if block not in self.blocks:
                break
            cached += BLOCK
        for block in request.blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)
        cached = min(cached, request.prompt - 1)
        prefill = (request.prompt - cached) / PREFILL * self.slowness
        self.free_at = max(self.free_at, now) + prefill
        self.worked += prefill
        token = DECODE_S * (1 + self.running * BATCHED) * self.slowness
        return cached, self.free_at, self.free_at + request.answer * token


class Gateway:
    """Chooses replicas. `sent`: what it runs on each; `others`: what else ran there when it looked last."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def choose(self, request: Request, replicas: Sequence[str]) -> str:
        raise NotImplementedError


class RoundRobin(Gateway):
    turn = 0

    def choose(self, request: Request, replicas: Sequence[str]) -> str:
        self.turn += 1
        return replicas[self.turn % len(replicas)]


class LeastLoad(Gateway):
    def choose(self, request: Request, replicas: Sequence[str]) -> str:
        return min(replicas, key=lambda name: (self.sent[name] + self.others[name], random.random()))


class Hashing(Gateway):
    def choose(self, request: Request, replicas: Sequence[str]) -> str:
        key = repr(request.blocks[:BEGINNING]).encode()
        loads = {name: float(self.sent[name] + self.others[name]) for name in replicas}
        return routing.choose(loads, routing.order(key, replicas))


def load(path: Path, faster: float) -> list[Request]:
    """The requests of a trace, `faster` times as fast."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [
        Request(row["timestamp"] / 1000 / faster, tuple(row["hash_ids"]), row["input_length"], row["output_length"])
        for row in rows
    ]


@dataclass
class Outcome:
    cached: float
    first: list[float]
    balance: float


def simulate(
    requests: Sequence[Request], make: Callable[[], Gateway], gateways: int, replicas: int, capacity: int, calm: bool
) -> Outcome:
    random.seed(0)
    fleet = {f"10.0.0.{i}:8000": Replica(f"10.0.0.{i}:8000", capacity) for i in range(replicas)}
    here = list(fleet)
    doors = [make() for _ in range(gateways)]
    ends: list[tuple[float, int, int, str]] = []
    cached = total = 0
    first: list[float] = []
    half, looked = requests[len(requests) // 2].at, 0.0
    for number, request in enumerate(requests):
        now = request.at
        if not calm and now >= half:
            calm = True
            fleet |= {f"10.0.1.{i}:8000": Replica(f"10.0.1.{i}:8000", capacity) for i in range(2)}
            here = [*here[2:], "10.0.1.0:8000", "10.0.1.1:8000"]
            fleet[here[0]].slowness = 3.0
        while ends and ends[0][0] <= now:
            _, _, door, name = heapq.heappop(ends)
            doors[door].sent[name] -= 1
            fleet[name].running -= 1
        if now - looked >= 1.0:
            looked = now
            for each in doors:
                each.others = Counter({name: fleet[name].running - each.sent[name] for name in here})
        door = random.randrange(gateways)
        name = doors[door].choose(request, here)
        had, begins, ended = fleet[name].take(request, now)
        doors[door].sent[name] += 1
        fleet[name].running += 1
        heapq.heappush(ends, (ended, number, door, name))
        cached, total = cached + had, total + request.prompt
        first.append(begins - now)
    work = [fleet[name].worked for name in here]
    return Outcome(cached / total, sorted(first), max(work) / mean(work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--replicas", type=int, default=16, metavar="N")
    parser.add_argument("--gateways", type=int, default=4, metavar="N")
    parser.add_argument("--faster", type=float, default=8.0, metavar="X", help="how much faster than recorded")
    parser.add_argument("--blocks", type=int, default=1000, metavar="N", help="of 512 tokens that a replica keeps")
    arguments = parser.parse_args()
    requests = load(arguments.trace, arguments.faster)
    for calm in (True, False):
        print("calm" if calm else "joins, leaves, a slow one")
        for label, make, gateways in _policies(arguments.gateways):
            o = simulate(requests, make, gateways, arguments.replicas, arguments.blocks, calm)
            n = len(o.first)
            print(
                f"{label:34} cached {o.cached:6.1%} ttft p50 {o.first[n // 2]:7.2f} p99 {o.first[n * 99 // 100]:7.2f} balance {o.balance:.2f}"
            )
    return 0


def _policies(gateways: int) -> Iterator[tuple[str, Callable[[], Gateway], int]]:
    for label, make in (("consistent hashing", Hashing), ("least load", LeastLoad), ("round robin", RoundRobin)):
        yield f"{label}, one gateway", make, 1
        yield f"{label}, {gateways} gateways", make, gateways


if __name__ == "__main__":
    raise SystemExit(main())
