"""The messages between rank 0 and each other rank: over a socket, each message after its length.

Rank 0 first sends what to load (`Task`), and for each step token ids, positions and rows of the tables, and what to
compute from them. Ranks report how far they have loaded, and why they end. Numbers that a model computed go through the
group's collectives.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from dovetail.engine.models.base import ForwardBatch, Span
from dovetail.engine.settings import EngineSettings

_LENGTH = struct.Struct("<Q")
_Rows = tuple[int, int] | bytes


@dataclass(frozen=True, slots=True)
class Task:
    """What rank `rank` loads: its part of the target in the folder `target`, with `rows` of cache, `context` positions
    and the residual streams `aux_layers`. The ranks meet in the file `meeting`; this one computes with `threads`
    threads."""

    rank: int
    meeting: Path
    target: Path
    settings: EngineSettings
    rows: int
    context: int
    aux_layers: tuple[int, ...]
    threads: int


class Forward(msgspec.Struct, tag=True, array_like=True):
    """Run a batch. `flat`: tokens, positions and rows, int64 [3, tokens]. `spans`: start, length, and rows (the ends of
    a slice, or int64)."""

    flat: bytes
    spans: list[tuple[int, int, _Rows]]


class Logits(msgspec.Struct, tag=True, array_like=True):
    """Compute the logits of hidden states that rank 0 sends; `states` is their number."""

    states: int


class Best(msgspec.Struct, tag=True, array_like=True):
    """Compute the best tokens for hidden states that rank 0 sends; `states` is their number."""

    states: int


class Loading(msgspec.Struct, tag=True, array_like=True):
    """A rank is loading: bytes that it has read, and all of them."""

    done: int
    total: int


class Ready(msgspec.Struct, tag=True, array_like=True):
    """A rank has loaded its part."""


class Failed(msgspec.Struct, tag=True, array_like=True):
    """A rank ends, for this reason."""

    reason: str


class Lost(msgspec.Struct, tag=True, array_like=True):
    """A rank ends, because another one did not answer it."""


Order = Forward | Logits | Best
Report = Loading | Ready | Failed | Lost
_ORDERS, _REPORTS = msgspec.msgpack.Decoder(Order), msgspec.msgpack.Decoder(Report)


class Channel:
    """One end of a socket. Every call raises `OSError` or `EOFError` when the other end is gone, and `TimeoutError`
    when nothing moves for `seconds` (None: it waits)."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, content: bytes, seconds: float | None) -> None:
        self._end.settimeout(seconds)
        self._end.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, seconds: float | None) -> bytes:
        self._end.settimeout(seconds)
        return self._read(*_LENGTH.unpack(self._read(_LENGTH.size)))

    def order(self) -> Order:
        """Wait for an order of rank 0."""
        order: Order = _ORDERS.decode(self.receive(None))
        return order

    def report(self, seconds: float) -> Report:
        """Wait for a report of the rank."""
        report: Report = _REPORTS.decode(self.receive(seconds))
        return report

    def close(self) -> None:
        self._end.close()

    def _read(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self._end.recv(min(size - len(content), 1 << 20))
            if not part:
                raise EOFError("the other end is gone")
            content += part
        return bytes(content)


def packed(message: Order | Report) -> bytes:
    return msgspec.msgpack.encode(message)


def forward_order(batch: ForwardBatch) -> Forward:
    """The order to run `batch`."""
    flat = torch.stack((batch.tokens, batch.positions, batch.rows))
    return Forward(_bytes(flat), [(span.start, span.length, _rows(span.rows)) for span in batch.spans])


def batch_of(order: Forward) -> ForwardBatch:
    """The batch of `order`."""
    tokens, positions, rows = _numbers(order.flat).view(3, -1)
    spans = (
        Span(start, length, _numbers(own) if isinstance(own, bytes) else slice(*own))
        for start, length, own in order.spans
    )
    return ForwardBatch(tokens, positions, rows, tuple(spans))


def _rows(rows: slice | Tensor) -> _Rows:
    return (rows.start, rows.stop) if isinstance(rows, slice) else _bytes(rows)


def _bytes(numbers: Tensor) -> bytes:
    content: bytes = numbers.contiguous().numpy().tobytes()
    return content


def _numbers(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.int64)
