"""What this server knows of its own answers: it makes their records, and finds them again in a history.

A record has an answer's tokens, and digests of the message that the client was sent. A client returns it in that
message, as ``message["dovetail"] = {"record": …}``. It counts if this server's key made it for this model, and the
message is still the one that it was made for. Reasoning may be missing, because many clients leave it out: the tokens
have it.

Reasoning comes back with its signature, too, where an API has such a field. If it is not as this server sent it, it is
rendered all the same, because a conversation may have begun at another server.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dovetail.custom_tools import with_functions
from dovetail.events import Message, fold
from dovetail.formats.base import Tools, parameters_by_name
from dovetail.formats.prompts.history import Repair
from dovetail.formats.prompts.splicing import Spelling
from dovetail.gateway.records import memory
from dovetail.gateway.records.record import (
    KINDS,
    Open,
    Record,
    RecordRefused,
    Schemas,
    Sealer,
    digest_of_pictures,
    digests_of_answer,
    digests_of_history,
    picture_numbers,
)
from dovetail.reading import Reader
from dovetail.tokens import Segment, Tokenizer
from dovetail.tokens.segment_stop import SegmentStop

#: Read after an answer, to see what it left open. Noncharacters, which no model writes.
_PROBE = "\ufdd1\ufdee\ufdd1"
_DOMAIN = b"dovetail thinking\0"  # the key signs other things too
_BYTES = 16  # half of SHA-256, the least that RFC 2104 recommends


def recorded_answers(
    messages: Sequence[Mapping[str, Any]], tools: Tools, sealer: Sealer, pictures: Sequence[str] = ()
) -> tuple[dict[int, Record], list[Repair]]:
    """The records that count, by the numbers of their messages, and a report of each other one.

    `pictures`: the digests of the pictures, by the numbers that their parts have.
    """
    records: dict[int, Record] = {}
    reports: list[Repair] = []
    before: list[int] = []
    schemas: Schemas | None = None
    for i, message in enumerate(with_functions(messages)):
        if not isinstance(message.get("content"), str):
            before += picture_numbers(message)
        extension = message.get("dovetail")
        if not isinstance(extension, Mapping):
            continue
        forgotten = extension.get("forgotten")
        if isinstance(forgotten, str) and forgotten in memory.KINDS:
            reports.append(Repair(forgotten, f"messages[{i}]", memory.KINDS[forgotten]))
        if extension.get("record") in (None, ""):
            continue
        schemas = parameters_by_name(tools) if schemas is None else schemas
        try:
            records[i] = _record(message, extension["record"], schemas, sealer, [pictures[number] for number in before])
        except RecordRefused as refused:
            reports.append(Repair(refused.kind, f"messages[{i}].dovetail.record", KINDS[refused.kind]))
    return records, reports


def _record(message: Mapping[str, Any], text: Any, schemas: Schemas, sealer: Sealer, pictures: Sequence[str]) -> Record:
    """The record in `text`. Raises `RecordRefused` if it does not count.

    `pictures`: the digests of those before the message.
    """
    if not isinstance(text, str):
        raise RecordRefused("record_invalid")
    record = sealer.open(text)
    if message["role"] != "assistant":
        raise RecordRefused("record_changed")
    answer, reasoning = digests_of_history(message, schemas)
    if answer != record.message or reasoning not in (b"", record.reasoning):
        raise RecordRefused("record_changed")
    if record.pictures != digest_of_pictures(pictures):
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


class AnswerStart(NamedTuple):
    """How a turn's answers begin.

    `opening`: the tokens of the generation prompt. `ids`: the tokens of the answer that are in the prompt, if the turn
    continues it. `in_reasoning`: whether `opening` leaves reasoning open.
    """

    opening: Sequence[int]
    ids: Sequence[int]
    in_reasoning: bool


class MadeRecord(NamedTuple):
    """The record of an answer, and what memory keeps it under: the digest of what the client was sent, and the ids of
    its calls."""

    record: str = ""
    shown: bytes = b""
    calls: tuple[str, ...] = ()


class AnswerRecorder:
    """Makes the records of one turn's answers.

    `start` tells how they begin; None if their first tokens are not known, because the turn continues a text.
    `new_reader` makes a reader of a choice's answer, given whether reasoning is open at its beginning. `tools`, `stop`:
    the request's tools and stop strings. `end_ids`: the tokens that end a turn. `pictures`: the digests of those
    that the model sees.
    """

    def __init__(
        self,
        sealer: Sealer,
        tokenizer: Tokenizer,
        start: Callable[[], AnswerStart | None],
        new_reader: Callable[[int, bool], Reader],
        tools: Tools,
        stop: Sequence[str],
        end_ids: frozenset[int],
        pictures: Sequence[str] = (),
    ) -> None:
        self._sealer = sealer
        self._tokenizer = tokenizer
        self._start = start
        self._new_reader = new_reader
        self._tools = tools
        self._stop = stop
        self._end_ids = end_ids
        self._pictures = pictures
        #: The choices without a record.
        self._left_out: set[int] = set()
        #: The last record of each choice, which is made in a thread before the response with it is written.
        self._made: dict[int, tuple[tuple[int, ...], MadeRecord]] = {}

    def record(self, choice: int, ids: Sequence[int]) -> MadeRecord:
        """The record of an answer with the new tokens `ids`. Takes as long as reading it again, for the first time.

        An empty one for an answer that has none: it is too long, it continues a text, a stop string cut it where its
        tokens cannot be cut, or it is left out.
        """
        if choice in self._left_out:
            return MadeRecord()
        made_of, made = self._made.get(choice, ((), MadeRecord()))
        if not made.record or made_of != tuple(ids):
            made = self._record(choice, ids)
            self._made[choice] = tuple(ids), made
        return made

    def leave_out(self, choice: int) -> None:
        """Make no record of a choice whose tokens say more than the message that the client was sent."""
        self._left_out.add(choice)

    def _record(self, choice: int, ids: Sequence[int]) -> MadeRecord:
        start = self._start()
        if start is None:
            return MadeRecord()
        end = next((i for i, token in enumerate(ids) if token in self._end_ids), None)
        spelling: Sequence[int] | None = ids[:end]
        segments, stopped = self._segments(ids[:end])
        if stopped:
            end, spelling = None, self._cut(ids[:end], segments)
        if spelling is None:
            return MadeRecord()
        segments = [*self._text(start.ids), *segments]
        new_reader = functools.partial(self._new_reader, choice, start.in_reasoning)
        answer, left_open = _read(new_reader, segments, "length" if end is None else "stop")
        schemas = parameters_by_name(self._tools)
        message, reasoning = digests_of_answer(answer, schemas)
        whole = (*start.ids, *spelling)
        pictures = digest_of_pictures(self._pictures)
        record = Record(whole, end is not None, left_open, tuple(start.opening), message, reasoning, pictures)
        shown = memory.digest_of_turn(answer.content, answer.calls, schemas)
        return MadeRecord(self._sealer.seal(record), shown, tuple(call.id for call in answer.calls))

    def _segments(self, ids: Sequence[int]) -> tuple[list[Segment], bool]:
        """The text of `ids` up to the first stop string, and whether there is one."""
        if not self._stop:
            return self._text(ids), False
        stop = SegmentStop(self._stop)
        segments = stop.feed(self._text(ids)) + stop.finish()
        return segments, stop.matched is not None

    def _text(self, ids: Sequence[int]) -> list[Segment]:
        return [Segment(piece, bool(i % 2)) for i, piece in enumerate(self._tokenizer.pieces(ids)) if piece]

    def _cut(self, ids: Sequence[int], segments: Sequence[Segment]) -> list[int] | None:
        """The tokens of `segments`: the first of `ids`, and the rest of the text encoded; None if that cannot be."""
        text = "".join(segment.text for segment in segments).encode()
        size = count = at = 0
        for i, token in enumerate(ids, start=1):
            literal = self._tokenizer.token_bytes(token)
            if not text.startswith(literal, at):
                break
            at += len(literal)
            if at == len(text) or text[at] & 0xC0 != 0x80:  # not inside a character
                size, count = at, i
        rest = text[size:].decode()
        if rest and (segments[-1].control or not segments[-1].text.endswith(rest)):
            return None
        return [*ids[:count], *self._tokenizer.encode(rest)]


def _read(new_reader: Callable[[], Reader], segments: Sequence[Segment], reason: str) -> tuple[Message, Open]:
    """The message in `segments`, and which of its texts would go on after them."""
    reader = new_reader()
    message = fold([*reader.feed_segments(segments), *reader.finish(reason)])
    if not message.calls:
        reader = new_reader()
        probed = fold([*reader.feed_segments([*segments, Segment(_PROBE, False)]), *reader.finish("length")])
        # An opener at the end of `segments` is text in `probed`, because no call follows.
        if probed.content.removesuffix(_PROBE).strip() == message.content.strip() and not probed.calls:
            if probed.content.endswith(_PROBE):
                return message, "content"
            if not probed.content and probed.reasoning.endswith(_PROBE):
                return message, "reasoning"
    return message, "markup"
