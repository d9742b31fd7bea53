"""A record: the token ids of a finished answer as an opaque text, which only this server's key makes and reads.

A client returns the text unchanged in its next request, and the prompt then has the very tokens that the model wrote.
The text is base64 of: version, fields, deflated ids, tag. docs/decisions/0022 says why.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from dovetail.events import Call, Message
from dovetail.formats.parts import PICTURES
from dovetail.formats.prompts.history import REASONING_FIELDS
from dovetail.tokens import Tokenizer

#: What can be wrong with a record in a history. Its message is then rendered from its text, and a `Repair` of this kind
#: says so.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "record_invalid": "a record that this server's key did not make, or that was changed or cut",
        "record_foreign": "a record of another model: its tokens mean something else here",
        "record_changed": "a record of another message: text, calls or ids have changed since it was made, or the "
        "pictures before it",
    }
)
RecordKind = Literal["record_invalid", "record_foreign", "record_changed"]

#: The most tokens of a record. Longer answers get none.
MAX_TOKENS = 256 * 1024
_TOKEN_BYTES = 3  # the most bytes of a token id, for vocabularies of up to 2 million
#: A record's tag protects its digests; a client that searches for a collision harms its own prompt only.
_DIGEST_BYTES = 8
#: Half of SHA-256, the least that RFC 2104 recommends.
_TAG_BYTES = 16
_MAX_EXACT = 2**53  # the integers up to here are the same in every client's numbers
_VERSION = b"\x01"
_ENDED, _REASONED, _IN_CONTENT, _IN_REASONING, _SEES = 1, 2, 4, 8, 16
#: Where the flags are, after version and model, and where the digest of the message ends.
_FLAGS = 1 + _DIGEST_BYTES
_HEAD = _FLAGS + 1 + _DIGEST_BYTES
_MAX_LENGTH = (_TOKEN_BYTES * MAX_TOKENS + 256) * 4 // 3 + 4  # characters

#: The schema of each tool's parameters, by the tool's name.
Schemas = Mapping[str, Any]
_NO_SCHEMAS: Schemas = MappingProxyType({})
_EXACT = msgspec.json.Encoder()
#: Digests of messages by the digests of their exact spelling: a history repeats messages in every request.
_KNOWN: dict[bytes, bytes] = {}
_MOST_KNOWN = 64 * 1024

#: What the answer's end left open, in which a text may go on; "markup" if that is neither content nor reasoning.
Open = Literal["content", "reasoning", "markup"]


class Record(msgspec.Struct, frozen=True):
    """A finished answer.

    `ids`: its tokens, without the one that ended the turn.
    `ended`: whether such a token came; without it, the answer was cut off.
    `open`: the text at the end of `ids` that would go on if the model wrote more.
    `opening`: the tokens of the generation prompt before the answer, from which it continues.
    `message`: the digest of its content and calls (`digests_of_answer`).
    `reasoning`: the digest of its reasoning; b"" if there is none.
    `pictures`: the digest of the pictures before it (`digest_of_pictures`).
    """

    ids: tuple[int, ...]
    ended: bool
    open: Open
    opening: tuple[int, ...]
    message: bytes
    reasoning: bytes
    pictures: bytes = b""


class RecordRefused(Exception):
    """A record that cannot be used. `kind` is one of `KINDS`."""

    def __init__(self, kind: RecordKind) -> None:
        super().__init__(KINDS[kind])
        self.kind = kind


class Sealer:
    """Makes the text of records, and reads it, for one model and one key.

    `model`: the digest of what gives token ids their meaning (`model_digest`).
    """

    def __init__(self, key: bytes, model: bytes, vocab_size: int) -> None:
        self._key = key
        self.model = model
        self._vocab_size = vocab_size

    def seal(self, record: Record) -> str:
        """The text of `record`; "" for an answer that is too long for one."""
        if len(record.ids) + len(record.opening) >= MAX_TOKENS:
            return ""
        flags = _ENDED * record.ended | _REASONED * bool(record.reasoning)
        flags |= _IN_CONTENT * (record.open == "content") | _IN_REASONING * (record.open == "reasoning")
        flags |= _SEES * bool(record.pictures)
        head = _VERSION + self.model + bytes((flags,)) + record.message + record.reasoning + record.pictures
        body = head + _packed((len(record.opening), *record.opening, *record.ids))
        return base64.b64encode(body + self._tag(body)).decode()

    def open(self, text: str) -> Record:
        """The record in `text`. Raises `RecordRefused`. Takes time and memory in proportion to its tokens."""
        body = self._authentic(text)
        if len(body) < _HEAD:
            raise RecordRefused("record_invalid")
        if body[1:_FLAGS] != self.model:
            raise RecordRefused("record_foreign")
        flags = body[_FLAGS]
        reasoning_end = _HEAD + (_DIGEST_BYTES if flags & _REASONED else 0)
        pictures_end = reasoning_end + (_DIGEST_BYTES if flags & _SEES else 0)
        count, *ids = _unpacked(body[pictures_end:])
        # The tag vouches for what follows, but not for the version of the code that wrote it.
        if count > len(ids) or max(ids, default=0) >= self._vocab_size:
            raise RecordRefused("record_invalid")
        return Record(
            ids=tuple(ids[count:]),
            ended=bool(flags & _ENDED),
            open="content" if flags & _IN_CONTENT else "reasoning" if flags & _IN_REASONING else "markup",
            opening=tuple(ids[:count]),
            message=body[_FLAGS + 1 : _HEAD],
            reasoning=body[_HEAD:reasoning_end],
            pictures=body[reasoning_end:pictures_end],
        )

    def _authentic(self, text: str) -> bytes:
        """The bytes of `text` before the tag."""
        try:
            sealed = base64.b64decode(text, validate=True) if len(text) <= _MAX_LENGTH else b""
        except (binascii.Error, ValueError):
            sealed = b""
        body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if body[:1] != _VERSION or not hmac.compare_digest(tag, self._tag(body)):
            raise RecordRefused("record_invalid")
        return body

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256)[:_TAG_BYTES]


def model_digest(format_name: str, tokenizer: Tokenizer) -> bytes:
    """What gives token ids their meaning: the format, and the bytes of every token. Reads the whole vocabulary."""
    digest = hashlib.sha256(format_name.encode())
    for token in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes(token)
        digest.update(b"%d:%b" % (len(spelled), spelled))
    for literal, token in sorted(tokenizer.control.items()):
        digest.update(f"{token}={literal}".encode())
    return digest.digest()[:_DIGEST_BYTES]


# -- token ids as bytes: LEB128, deflated -----------------------------------------------------------------------------

_WORD = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")


def _packed(ids: Iterable[int]) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(b"".join(map(_word, ids))) + deflate.flush()


def _unpacked(packed: bytes) -> list[int]:
    """The ids in `packed`, at least one. Raises `RecordRefused` if there is none or there are too many."""
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        words = inflate.decompress(packed, _TOKEN_BYTES * MAX_TOKENS)
    except zlib.error:
        words = b""
    ids = list(map(_number, _WORD.findall(words)))
    if not ids or not inflate.eof:
        raise RecordRefused("record_invalid")
    return ids


# Cached: there are as many as the vocabulary has tokens, and an answer repeats most of them.
@functools.cache
def _word(number: int) -> bytes:
    word = bytearray()
    while number > 0x7F:
        word.append(number & 0x7F | 0x80)
        number >>= 7
    word.append(number)
    return bytes(word)


@functools.cache
def _number(word: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(word))


# -- digests of a message ---------------------------------------------------------------------------------------------
#
# They show whether a history still has it as it was sent. What clients change without meaning to does not count: white
# space, content as a string or as parts, null for empty text, how the arguments of a call are written as JSON (spaces,
# escapes, the order of keys, 1.0 for 1), and arguments that have the default of the tool's schema (claude-code adds
# those that the model left out).


def digests_of_answer(answer: Message, schemas: Schemas = _NO_SCHEMAS) -> tuple[bytes, bytes]:
    """The digests of an answer's content and calls, and of its reasoning (b"" if there is none).

    `schemas`: of the request's tools, by their names. They have the defaults.
    """
    return digest_of_shown(answer.content, answer.calls, schemas), _digest_of_reasoning(answer.reasoning)


def digests_of_history(message: Mapping[str, Any], schemas: Schemas = _NO_SCHEMAS) -> tuple[bytes, bytes]:
    """The same of a message in a history, which is well formed."""
    reasoning = (message.get(field) for field in REASONING_FIELDS)
    shown = digest_of_shown(text_of(message.get("content")), calls_of(message), schemas)
    return shown, _digest_of_reasoning(next((text for text in reasoning if isinstance(text, str) and text), ""))


def calls_of(message: Mapping[str, Any]) -> list[Call]:
    """The calls of a message in a history."""
    return [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]


def digest_of_pictures(sha256s: Iterable[str]) -> bytes:
    """The digest of pictures, given the digests of their files in order; b"" if there is none."""
    digests = [*sha256s]
    return _digest(digests) if digests else b""


def _digest_of_reasoning(reasoning: str) -> bytes:
    return _digest(reasoning.strip()) if reasoning.strip() else b""


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).digest()[:_DIGEST_BYTES]


def digest_of_shown(content: str, calls: Sequence[Call], schemas: Schemas) -> bytes:
    """The digest of a message's content and calls."""
    spelled = (content, calls, [schemas.get(call.name) for call in calls])
    try:
        exact = hashlib.sha256(_EXACT.encode(spelled)).digest()
    except UnicodeEncodeError:  # half of a surrogate pair
        exact = hashlib.sha256(repr(spelled).encode()).digest()
    known = _KNOWN.get(exact)
    if known is None:
        shown = [[call.id, call.name, _arguments(call.arguments, schemas.get(call.name))] for call in calls]
        known = _digest([" ".join(content.split()), shown])
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[exact] = known
    return known


def text_of(content: Any) -> str:
    """The text of a message's content: a string, parts, or null."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def picture_numbers(message: Mapping[str, Any]) -> list[int]:
    """The numbers of the pictures in `message`."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else ()
    return [part["number"] for part in parts if part["type"] in PICTURES]


def _arguments(arguments: Any, schema: Any) -> Any:
    """Arguments in one spelling, without defaults of the schema; JSON text that cannot be read stays as it is."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        value = json.loads(text, parse_float=_json_number)
        return json.dumps(_without_defaults(value, schema, schema), sort_keys=True)
    except (RecursionError, TypeError, ValueError):
        return ["unreadable", arguments]


def _without_defaults(value: Any, schema: Any, root: Any) -> Any:
    """`value` without the members of objects that have the default of their schema, at any depth.

    `schema`: the schema of `value` as the client sent it, in any shape. It is followed through `properties`,
    `items`, and `$ref` to a definition of `root`.
    """
    schema = _referenced(schema, root)
    if isinstance(value, dict):
        members = _member(schema, "properties")
        return {
            key: _without_defaults(item, _member(members, key), root)
            for key, item in value.items()
            if not _is_default(item, _member(members, key))
        }
    if isinstance(value, list):
        items = _member(schema, "items")
        return [_without_defaults(item, items, root) for item in value]
    return value


def _referenced(schema: Any, root: Any) -> Any:
    match _member(schema, "$ref"):
        case str(pointer) if len(parts := pointer.split("/")) == 3 and parts[0] == "#":
            return _member(_member(root, parts[1]), parts[2])
        case _:
            return schema


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _is_default(value: Any, schema: Any) -> bool:
    if not isinstance(schema, Mapping) or "default" not in schema or schema["default"] != value:
        return False
    # Equal in Python: in JSON, false is not 0. What is equal is as long as `value`, which the client sent as well.
    return json.dumps(schema["default"]) == json.dumps(value)


def _json_number(literal: str) -> float:
    number = float(literal)
    return int(number) if number.is_integer() and abs(number) < _MAX_EXACT else number
