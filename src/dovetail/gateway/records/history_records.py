"""The records in a history: which of its messages are the answers that this server gave, with their tokens.

A client returns a record in its message, as ``message["dovetail"] = {"record": …}``. It counts if this server's key
made it for this model, and the message is still the one that it was made for. Reasoning may be missing, because many
clients leave it out: the tokens have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.custom_tools import with_functions
from dovetail.formats.base import Tools
from dovetail.formats.prompts.history import Repair
from dovetail.formats.prompts.splicing import Spelling
from dovetail.gateway.records import message_digest
from dovetail.gateway.records.record import KINDS, Record, RecordRefused, Sealer
from dovetail.tokens import Tokenizer


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
    answer, reasoning = message_digest.of_history(message, tools)
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
