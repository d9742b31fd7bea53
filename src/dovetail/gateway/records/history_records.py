"""What of a history is this server's own: the answers that have a record, with their tokens, and signed reasoning.

A client returns a record in its message, as ``message["dovetail"] = {"record": …}``. It counts if this server's key
made it for this model, and the message is still the one that it was made for. Reasoning may be missing, because many
clients leave it out: the tokens have it.

Reasoning comes back with its signature, too, where an API has such a field. If it is not as this server sent it, it is
rendered all the same, because a conversation may have begun at another server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.custom_tools import with_functions
from dovetail.formats.base import Tools
from dovetail.formats.prompts.history import Repair
from dovetail.formats.prompts.splicing import Spelling
from dovetail.gateway.records.record import KINDS, Record, RecordRefused, Sealer, digests_of_history
from dovetail.tokens import Tokenizer

_DOMAIN = b"dovetail thinking\0"  # the key signs other things too
_BYTES = 16  # half of SHA-256, the least that RFC 2104 recommends


def recorded_answers(
    messages: Sequence[Mapping[str, Any]], tools: Tools, sealer: Sealer
) -> tuple[dict[int, Record], list[Repair]]:
    """The records that count, by the numbers of their messages, and a report of each other one."""
    records: dict[int, Record] = {}
    reports: list[Repair] = []
    for i, message in enumerate(with_functions(messages)):
        extension = message.get("dovetail")
        if not isinstance(extension, Mapping) or extension.get("record") in (None, ""):
            continue
        try:
            records[i] = _record(message, extension["record"], tools, sealer)
        except RecordRefused as refused:
            reports.append(Repair(refused.kind, f"messages[{i}].dovetail.record", KINDS[refused.kind]))
    return records, reports


def _record(message: Mapping[str, Any], text: Any, tools: Tools, sealer: Sealer) -> Record:
    """The record in `text`. Raises `RecordRefused` if it does not count."""
    if not isinstance(text, str):
        raise RecordRefused("record_invalid")
    record = sealer.open(text)
    if message["role"] != "assistant":
        raise RecordRefused("record_changed")
    answer, reasoning = digests_of_history(message, tools)
    if answer != record.message or reasoning not in (b"", record.reasoning):
        raise RecordRefused("record_changed")
    return record


def spelling(record: Record, tokenizer: Tokenizer) -> Spelling:
    return Spelling(
        pieces=tokenizer.pieces(record.ids),
        opening=[str(piece) for piece in tokenizer.pieces(record.opening)],
        ended=record.ended,
        open=record.open,
        reasoned=bool(record.reasoning),
    )


class SignedReasoning(msgspec.Struct, frozen=True):
    """Reasoning that a client returned with a signature. `field`: where the request has it."""

    field: str
    reasoning: str
    signature: str


class Signatures:
    """Signs and checks reasoning with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, reasoning: str) -> str:
        """The signature of `reasoning`."""
        tag = hmac.digest(self._key, _DOMAIN + reasoning.encode(), hashlib.sha256)
        return base64.b64encode(tag[:_BYTES]).decode()

    def check(self, signed: Iterable[SignedReasoning]) -> Iterator[Repair]:
        """A report for each that has changed since it was signed, or was never signed with this key."""
        for one in signed:
            if not hmac.compare_digest(self.sign(one.reasoning).encode(), one.signature.encode()):
                yield Repair("foreign_thinking", one.field, "not signed by this server, or changed; rendered as it is")
