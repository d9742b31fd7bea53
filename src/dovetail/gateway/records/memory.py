"""The records of answers, kept by the server and found again by what clients return, for clients that return no record.

A record is kept under keyed digests of the conversation before the answer, of what the client was sent of the answer,
and of the ids of its calls. A turn that comes back unchanged and without a record gets its record: from there on it
is as if the client had returned it. docs/memory.md says what counts as unchanged.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from dovetail.custom_tools import with_functions
from dovetail.events import Call
from dovetail.formats.base import Tools, parameters_by_name
from dovetail.gateway.records.record import Schemas, calls_of, digest_of_shown, picture_numbers, text_of
from dovetail.gateway.store.interface import DEFAULT_LIMITS, Store, StoreError, StoreLimits, Table
from dovetail.gateway.store.sqlite import entries_in

#: Why a turn that memory knows gets no record.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "memory_changed": "an answer was remembered here, and this is another text: it is rendered as it is",
        "memory_ambiguous": "answers with this text and other tokens were remembered here: it is rendered as it is",
    }
)
MemoryKind = Literal["memory_changed", "memory_ambiguous"]

#: `place`: the conversation before the answer. `name`: the first of its calls, if this server gave that its id.
#: `turn`: either of them with the message. `calls`: the ids of its calls. `answer`: the name of the response.
#: Two answers with one text and other tokens are enough to know that there is more than one.
TABLE = Table(
    "answers",
    {"place": bytes, "name": bytes, "turn": bytes, "record": str, "calls": bytes, "answer": str},
    keys=("place", "name", "turn", "answer"),
    alike=("turn", "record"),
)
_DIGEST_BYTES = 16
#: An id that this server gave to a call: 64 random bits, which no other answer has.
_OWN_ID = re.compile(r"call_[0-9a-f]{16}_[0-9_]+")
#: What Kimi Code writes as an underscore in the ids of calls.
_ODD_IN_ID = re.compile(r"[^A-Za-z0-9_-]")
#: A history repeats ids in every request.
_LONGEST_KNOWN_ID = 100


class Tenant(NamedTuple):
    """Whose answers: what stands for the API key in the store, and the salt of the request ("": none)."""

    owner: str
    salt: str = ""


def owner_of(api_key: str | None) -> str:
    """What stands for an API key in a store, from which the key cannot be read; "" for none."""
    return hashlib.sha256(b"dovetail responses\0" + api_key.encode()).hexdigest() if api_key else ""


def owner_named(name: str) -> str:
    """What stands for a named key in a store. Another key of the same name has the same entries."""
    return f"key {name}"


class Recalled(NamedTuple):
    """A history in which the turns that memory knows have their records, and their calls the ids that the model wrote.

    `place`: the place of the answer that comes next. `restored`: how many turns got a record.
    """

    messages: Sequence[Mapping[str, Any]]
    place: bytes
    restored: int


class _Turn(NamedTuple):
    """A turn without a record: its number, and the digests under which its answer would be kept."""

    number: int
    place: bytes
    name: bytes | None
    turn: bytes


class Memory:
    """The answers of all tenants in the file at a path, or in a store that gateways share. Calls block.

    `key`: the server's secret.
    """

    def __init__(self, place: Path | Store, key: bytes, limits: StoreLimits = DEFAULT_LIMITS) -> None:
        self._entries = entries_in(place, TABLE, limits)
        self._key = key

    def recall(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        tenant: Tenant,
        model: bytes,
        pictures: Sequence[str] = (),
        *,
        continues: bool = False,
    ) -> Recalled:
        """`messages` with the records of their unchanged answers.

        `model`: the digest of the model (`model_digest`). `pictures`: the digests of the pictures, by number.
        `continues`: the next answer goes on with the last message.
        """
        digests = _Digests(self._key, tenant, model)
        turns, places = digests.of(messages, tools, pictures)
        place = places[-2 if continues else -1]
        found, known = self._looked_up(turns, tenant.owner)
        changed = list(messages)
        restored = 0
        for turn in turns:
            records = found.get(turn.turn, {})
            restored += len(records) == 1
            if len(records) == 1:
                ((record, ids),) = records.items()
                changed[turn.number] = _extended(messages[turn.number], record=record)
                _with_ids(changed, turn.number, msgspec.json.decode(ids))
            elif records or turn.place in known or turn.name in known:
                kind = "memory_ambiguous" if records else "memory_changed"
                changed[turn.number] = _extended(messages[turn.number], forgotten=kind)
        return Recalled(changed, place, restored)

    def _looked_up(self, turns: Sequence[_Turn], owner: str) -> tuple[dict[bytes, dict[str, bytes]], set[bytes | None]]:
        """The records of `turns` with the ids of their calls, and which places and names of the others are known."""
        found: dict[bytes, dict[str, bytes]] = {}
        if not turns:
            return found, set()
        entries = self._entries.of(owner)
        try:
            for turn, record, calls in entries.find(("turn", "record", "calls"), "turn", {each.turn for each in turns}):
                found.setdefault(turn, {})[record] = calls
            others = [each for each in turns if each.turn not in found]
            places, names = {each.place for each in others}, {each.name for each in others} - {None}
            return found, entries.known("place", places) | entries.known("name", names)
        except StoreError:  # the store has logged it
            return {}, set()

    def keep(
        self,
        record: str,
        shown: bytes,
        calls: Sequence[str],
        tenant: Tenant,
        model: bytes,
        place: bytes,
        answer: str = "",
    ) -> None:
        """Keep `record` of an answer at `place`. Raises `StoreError`.

        `shown`: the digest of what the client was sent (`digest_of_turn`). `calls`: the ids of its calls. `answer`: the
        name of the response.
        """
        digests = _Digests(self._key, tenant, model)
        name = digests.name(calls[0]) if calls else None
        turn = digests.turn(place, name, shown)
        ids = msgspec.json.encode(calls)
        entry = {"place": place, "name": name, "turn": turn, "record": record, "calls": ids, "answer": answer}
        self._entries.of(tenant.owner).put(entry, len(record) + len(ids) + 4 * _DIGEST_BYTES)

    def forget(self, answer: str, tenant: Tenant) -> None:
        """Delete what is kept of the response with the name `answer`. Raises `StoreError`."""
        self._entries.of(tenant.owner).delete("answer", answer)

    def close(self) -> None:
        """Close the store. The next call opens it again."""
        self._entries.close()


class _Digests:
    """The digests of one tenant's conversations with one model."""

    def __init__(self, key: bytes, tenant: Tenant, model: bytes) -> None:
        whose = b"%d:%b%b" % (len(tenant.owner), tenant.owner.encode(), tenant.salt.encode())
        secret = hmac.digest(key, b"dovetail memory\0" + model + whose, hashlib.sha256)
        self._keyed = hashlib.sha256(secret.ljust(64, b"\0"))  # a block, and less of the digest is kept than it has

    def of(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools, pictures: Sequence[str]
    ) -> tuple[list[_Turn], list[bytes]]:
        """The turns without a record, and the place of each message and of the next one."""
        schemas = parameters_by_name(tools)
        place = self._digest(b"begin")
        turns, places = [], [place]
        for number, message in enumerate(messages):
            content, before = message.get("content"), place
            text = content if isinstance(content, str) else text_of(content)
            if message["role"] == "assistant":
                calls = _calls_of(message)
                shown = digest_of_turn(text, calls, schemas)
                place = self.turn(before, None, shown)
                if not _has_record(message):
                    name = self.name(calls[0].id) if calls else None
                    turn = place if name is None else self.turn(before, name, shown)
                    turns.append(_Turn(number, before, name, turn))
            else:
                numbers = () if text is content else picture_numbers(message)
                # Only the last of these can have a NUL.
                heads = [message["role"], _plain_id(message.get("tool_call_id") or ""), str(len(numbers))]
                said = "\0".join([*heads, *(pictures[each] for each in numbers), text.strip()])
                place = self._digest(b"message" + before + said.encode("utf-8", "surrogatepass"))
            places.append(place)
        return turns, places

    def name(self, first_call: str) -> bytes | None:
        """The digest of the id of an answer's first call; None if this server did not give it that."""
        return self._digest(b"call" + first_call.encode()) if _OWN_ID.fullmatch(first_call) else None

    def turn(self, place: bytes, name: bytes | None, shown: bytes) -> bytes:
        """The digest of an answer: an id of this server names it wherever it stands, else its place does."""
        return self._digest(b"turn" + (place if name is None else name) + shown)

    def _digest(self, data: bytes) -> bytes:
        digest = self._keyed.copy()
        digest.update(data)
        return digest.digest()[:_DIGEST_BYTES]


def _calls_of(message: Mapping[str, Any]) -> Sequence[Call]:
    calls = message.get("tool_calls")
    if not calls:
        return ()
    if "custom" in [call.get("type") for call in calls]:
        (message,) = with_functions([message])
    return calls_of(message)


def _has_record(message: Mapping[str, Any]) -> bool:
    extension = message.get("dovetail")
    return isinstance(extension, dict) and extension.get("record") not in (None, "")


def digest_of_turn(content: str, calls: Sequence[Call], schemas: Schemas) -> bytes:
    """The digest of what a client returns of an answer."""
    plain = [Call(_plain_id(call.id), call.name, call.arguments) for call in calls]
    return digest_of_shown(content, plain, schemas)


def _plain_id(call_id: str) -> str:
    return _known_plain_id(call_id) if len(call_id) <= _LONGEST_KNOWN_ID else _ODD_IN_ID.sub("_", call_id)


@functools.lru_cache(4096)
def _known_plain_id(call_id: str) -> str:
    return _ODD_IN_ID.sub("_", call_id)


def _with_ids(messages: list[Mapping[str, Any]], number: int, ids: Sequence[str]) -> None:
    """Give the calls of a message the `ids` that they had, and the results behind it the ids of their calls."""
    calls = messages[number].get("tool_calls") or ()
    renamed = {call["id"]: new for call, new in zip(calls, ids, strict=True) if call["id"] != new}
    if not renamed:
        return
    own = [{**call, "id": renamed.get(call["id"], call["id"])} for call in calls]
    messages[number] = {**messages[number], "tool_calls": own}
    for i in range(number + 1, len(messages)):
        message = messages[i]
        if message.get("tool_calls"):
            break
        if message["role"] == "tool" and message.get("tool_call_id") in renamed:
            messages[i] = {**message, "tool_call_id": renamed[message["tool_call_id"]]}


def _extended(message: Mapping[str, Any], **fields: str) -> Mapping[str, Any]:
    return {**message, "dovetail": fields}
