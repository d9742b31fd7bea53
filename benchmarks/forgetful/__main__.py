"""`python -m benchmarks.forgetful`: random agent conversations, with each client's way of returning answers.

For each pair of consecutive turns: does the second prompt begin with the first prompt and its output, id for id?
Without memory, with memory, and with records, as a client that returns them would get it. Exits with 1 if memory is
worse, other than by the template's own rule. `--cost` measures what it takes instead.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from benchmarks import tables
from benchmarks.forgetful import cost
from benchmarks.forgetful.clients import CLIENTS, Client
from benchmarks.tables import Sheet
from dovetail.errors import DovetailError
from dovetail.gateway.records.memory import Memory, Tenant
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from tests.gateway import multi_turn
from tests.gateway.dialogues import Chat
from tests.gateway.multi_turn import SETTINGS, Conversation, Model, RequestTurn

SHARED = Path(__file__).parents[3] / "shared" / "data"
_TENANT = Tenant("client")


class Arms(NamedTuple):
    """One turn: as the client sends it, without memory and with it; and as a client that returns records sends it."""

    without: PreparedTurn
    memory: PreparedTurn
    records: PreparedTurn


class Pair(NamedTuple):
    """Whether the second prompt of each arm is exact, and why not with memory.

    `same_loop`: no message of the user is between them.
    """

    without: bool
    memory: bool
    records: bool
    why: str
    same_loop: bool


class Forgetful(Conversation):
    """A conversation of a client, with memory and without."""

    def __init__(self, model: Model, seed: int, client: Client, memory: Memory) -> None:
        super().__init__(model, seed, dialogue=client.dialogue)
        self.client = client
        self.remembering = TurnRunner(self.engine, model.format, model.tokenizer, SETTINGS, memory)

    def answers(self, turns: int) -> Iterator[Pair]:
        before: tuple[Arms, RequestTurn] | None = None
        same_loop = True
        for _ in range(turns):
            history, forgotten = self.dialogue.history, self.dialogue.without_records()
            own = self.dialogue.exchange(history if self.client.returns_records else forgotten)
            requested = msgspec.structs.replace(own.turn_request, tenant=_TENANT)
            arms = Arms(
                self.runner.prepare(own.turn_request),
                self.remembering.prepare(requested),
                self.runner.prepare(self.dialogue.exchange(history).turn_request),
            )
            turn = RequestTurn(arms.memory, arms.without)
            if before is not None:
                ids, earlier = before[1].ids, before[0]
                both = zip(earlier, arms, strict=True)
                exact = [now.prompt[: len(old.prompt) + len(ids)] == old.prompt + ids for old, now in both]
                yield Pair(*exact, "" if exact[1] else self.why(before[1], turn), same_loop)
            calls = self.answered(turn, own)
            self.remembering.remember(arms.memory, [Step(0, [], turn.ids, None, 0, "stop")])
            same_loop = self.goes_on(calls)
            before = arms, turn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000, metavar="N", help="of each client")
    parser.add_argument("--turns", type=int, default=6, metavar="N")
    parser.add_argument("--clients", nargs="*", default=[*CLIENTS], choices=CLIENTS)
    parser.add_argument("--cost", action="store_true", help="measure what memory takes of a request instead")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if arguments.cost:
        cost.show(as_markdown=arguments.markdown)
        return 0
    began = time.monotonic()
    pairs: dict[str, list[Pair]] = {}
    with TemporaryDirectory() as folder:
        for name in arguments.clients:
            memory = Memory(Path(folder) / f"{len(pairs)}.db", SETTINGS.record_key)
            pairs[name] = [*_pairs(CLIENTS[name], memory, arguments.conversations, arguments.turns)]
            memory.close()
            print(f"{name}: {len(pairs[name])} pairs, {time.monotonic() - began:.0f} s", file=sys.stderr)
    everything = [*itertools.chain.from_iterable(pairs.values())]
    why = Counter(pair.why for pair in everything if not pair.memory)
    sheets: list[Sheet] = [
        _shares("results of calls between the turns", pairs, True),
        _shares("a message of the user between the turns", pairs, False),
        (
            "Not exact with memory",
            ["why", "pairs"],
            [[reason, str(n)] for reason, n in why.most_common()],
        ),
    ]
    notes = [f"{arguments.conversations} conversations of each client, {len(everything)} pairs of turns"]
    tables.show(sheets, notes, as_markdown=arguments.markdown, words=("client", "why"))
    # Reasoning that is put back, and that the template then drops, is lost with records, too.
    worse = [pair for pair in everything if (pair.without or pair.records) and not pair.memory]
    return 1 if any(not pair.why.startswith("template") for pair in worse) else 0


def _pairs(client: Client, memory: Memory, conversations: int, turns: int) -> Iterator[Pair]:
    """Two of five conversations are with published templates where the client speaks chat completions."""
    shared = SHARED if SHARED.is_dir() else None
    natives = multi_turn.natives(shared)
    templates = multi_turn.templates(shared) if shared and issubclass(client.dialogue, Chat) else []
    for number in range(conversations):
        round, place = divmod(number, 5)
        models, at = (natives, 3 * round + place) if place < 3 or not templates else (templates, 2 * round + place)
        with contextlib.suppress(DovetailError):
            yield from Forgetful(models[at % len(models)], number, client, memory).answers(turns)


def _shares(title: str, pairs: dict[str, list[Pair]], same_loop: bool) -> Sheet:
    rows = []
    for name, all_pairs in [*pairs.items(), ("all", [*itertools.chain.from_iterable(pairs.values())])]:
        members = [pair for pair in all_pairs if pair.same_loop == same_loop]
        template = sum(pair.why.startswith("template") for pair in members)
        counts = (sum(pair[i] for pair in members) for i in range(3))
        shares = (f"{100 * count / max(1, len(members)):.1f} %" for count in (*counts, template))
        rows.append([name, str(len(members)), *shares])
    return f"Exact pairs, {title}", ["client", "pairs", "without", "memory", "records", "template"], rows


if __name__ == "__main__":
    sys.exit(main())
