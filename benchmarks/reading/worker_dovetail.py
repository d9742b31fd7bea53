"""Dovetail's readers as a worker: text alone, or text and ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import dovetail
from benchmarks.reading.measure import Open, Piece, Stream, serve
from dovetail.events import CallArguments, CallStart, Content, Reasoning
from dovetail.tokens import Tokenizer


class TableTokenizer(Tokenizer):
    """The ids that the parent cut the output into, and nothing else."""

    def __init__(self, control: dict[str, int], table: dict[int, bytes]) -> None:
        self.control = control
        self.vocab_size = max(table) + 1
        self._table = table

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError("nothing is encoded here")

    def _bytes(self, token: int) -> bytes:
        return self._table[token]


def read(events: Iterable[Any]) -> Iterable[Piece]:
    """Events as pieces."""
    for event in events:
        match event:
            case Content(text):
                yield "content", 0, text
            case Reasoning(text):
                yield "reasoning", 0, text
            case CallStart(index, _, name):
                yield "name", index, name
            case CallArguments(index, fragment):
                yield "arguments", index, fragment


def load() -> tuple[dict[str, str], Callable[[dict[str, Any]], Open]]:
    """`serve` has the contract."""

    def open_family(job: dict[str, Any]) -> Open:
        family = dovetail.format(job["family"])
        tokenizer = None
        if job["ids"]:
            table = {int(token): spelled.encode("latin-1") for token, spelled in job["table"].items()}
            tokenizer = TableTokenizer(job["control"], table)

        def start() -> Stream:
            reader = family.reader(job["tools"], thinking=bool(job["opening"]), tokenizer=tokenizer)
            return Stream(
                feed=reader.feed,
                last=lambda text, ids: [*reader.feed(text, ids), *reader.finish("stop")],
                read=read,
            )

        return start

    return {"dovetail": dovetail.__version__}, open_family


if __name__ == "__main__":
    serve(load)
