"""The bodies of requests: limits of one, in bytes and messages, and of all that are received or prepared at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request

from dovetail.errors import EngineBusy, InvalidRequest, PayloadTooLarge, WrongMediaType

T = TypeVar("T")


class Body:
    """The body of one request. It counts as memory from its first byte until `release`, and its pictures longer."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._data = b""
        self.size = 0
        #: Ends the reading of a body that has to make room.
        self.scope = asyncio.timeout(None)
        self.evicted = False

    async def receive(self, request: Request, limit: int) -> None:
        """Read the whole body. Raises `PayloadTooLarge`, `EngineBusy`, and `ClientDisconnect`."""
        parts: list[bytes] = []
        try:
            async with self.scope:
                async for part in request.stream():
                    self._bodies.grow(self, len(part))
                    if self.evicted:
                        break
                    _check_size(self.size, limit)
                    parts.append(part)
        except TimeoutError:
            self.evicted = True
        if self.evicted:
            raise self._bodies.full()
        self._data = b"".join(parts)

    @property
    def data(self) -> bytes:
        """The bytes, until `take`."""
        return self._data

    def take(self) -> bytes:
        """The bytes, once: nothing else holds them afterwards. For the thread that reads them, when it begins."""
        data, self._data = self._data, b""
        return data

    def release(self, kept: int = 0) -> None:
        """Drop the bytes, and count only `kept` from now on, for what was made of them. It may be called again."""
        self._data = b""
        self._bodies.shrink(self)
        self._bodies.grow(self, kept)


class Bodies:
    """The bodies of all requests, of at most `each` bytes, and of at most `together` bytes at a time.

    A body may have as many bytes as `with_pictures` says, if it has at most `each` without its pictures.

    A body for which there is no room takes the place of the one that has been arriving for longest, as long as one is
    arriving: bodies that are sent slowly, or never to their end, cannot lock anybody out.
    """

    def __init__(self, each: int, together: int, with_pictures: Callable[[], int] = int) -> None:
        self._each = each
        self._with_pictures = with_pictures
        self._together = together
        self._total = 0
        #: Those that are arriving, the oldest first.
        self._arriving: dict[Body, None] = {}

    @asynccontextmanager
    async def read(
        self, request: Request, media_type: str = "application/json", most: int | None = None
    ) -> AsyncIterator[Body]:
        """The whole body of a request that declares it as `media_type`; released at the end, if it was not before.

        `most`: its limit in bytes; None: as for all bodies.

        Raises `WrongMediaType`; `PayloadTooLarge` for a body that is too large, without reading on; `EngineBusy` if
        there is no room; and `ClientDisconnect`.
        """
        _check_media_type(request.headers.get("content-type", ""), media_type)
        declared = request.headers.get("content-length", "")
        limit = max(self._each, self._with_pictures()) if most is None else most
        _check_size(int(declared) if declared.isdecimal() else 0, limit)
        body = Body(self)
        self._arriving[body] = None
        try:
            try:
                await body.receive(request, limit)
            finally:
                self._arriving.pop(body, None)
            if most is None and body.size > self._each:
                _check_size(await asyncio.to_thread(_without_pictures, body.data), self._each)
            yield body
        finally:
            body.release()

    def grow(self, body: Body, size: int) -> None:
        """Count `size` more bytes of `body`, and make room for them."""
        if body.evicted:
            return
        body.size += size
        self._total += size
        while self._total > self._together and self._arriving:
            self._evict(next(iter(self._arriving)))

    def shrink(self, body: Body) -> None:
        """Count no more bytes of `body`."""
        self._total -= body.size
        body.size = 0

    def full(self) -> EngineBusy:
        """The error for a body that had to make room."""
        return EngineBusy(f"the server holds {self._together} bytes of requests already; try again later")

    def _evict(self, body: Body) -> None:
        del self._arriving[body]
        self.shrink(body)
        body.evicted = True
        body.scope.reschedule(asyncio.get_running_loop().time())


#: The depths, in a body, of what takes long to prepare: messages and tools, and the parts of messages.
_ENTRIES = (2, 4)
#: Strings, which may contain anything, and brackets.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)


def check_count(body: bytes, most: int) -> None:
    """Raise `InvalidRequest` for a body with more than `most` messages, parts of messages and tools together.

    It costs a fraction of decoding the body, which others refuse if it is not what it should be, and other threads may
    run meanwhile.
    """
    if body.count(b"{") <= most:
        return
    depth = count = 0
    for token in _TOKENS.finditer(body):
        match body[token.start()]:
            case 0x7B:  # {
                count += depth in _ENTRIES
                depth += 1
            case 0x5B:  # [
                depth += 1
            case 0x7D | 0x5D:
                depth -= 1
        if count > most:
            raise InvalidRequest(
                f"the request has more than {most:,} messages, parts of messages and tools, the limit of this server: "
                "send fewer, or start it with a higher --max-messages"
            )


class _Metadata(msgspec.Struct):
    session_id: msgspec.Raw = msgspec.Raw()
    user_id: msgspec.Raw = msgspec.Raw()


class _Common(msgspec.Struct):
    cache_salt: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    user: msgspec.Raw = msgspec.Raw()


_IN_COMMON = re.compile(rb'"(?:cache_salt|session_id|prompt_cache_key|metadata|user)"\s{0,9}:')
_COMMON, _METADATA = msgspec.json.Decoder(_Common), msgspec.json.Decoder(_Metadata)
_TEXT = msgspec.json.Decoder(Annotated[str, msgspec.Meta(min_length=1)] | None)


def salt_and_session(body: bytes) -> tuple[str | None, str]:
    """What a request of every API may say of the engine's cache: vLLM's field `cache_salt`, and the session.

    The session is the first of vLLM's `session_id`, OpenAI's `prompt_cache_key`, `metadata.session_id`, Anthropic's
    `metadata.user_id`, which coding agents give a session, and `user`; "" for none. Raises `InvalidRequest` for a salt
    that is no text. What is no request is left to the decoder of its API, and so is a field that is no text.
    """
    fields = _decoded(_COMMON, body) if _IN_COMMON.search(body) else None
    if fields is None:
        return None, ""
    metadata = _decoded(_METADATA, fields.metadata) or _Metadata()
    named = (fields.session_id, fields.prompt_cache_key, metadata.session_id, metadata.user_id, fields.user)
    session = next(filter(None, (_decoded(_TEXT, field) for field in named)), "")
    salt = _decoded(_TEXT, fields.cache_salt)
    if salt is None and bytes(fields.cache_salt) not in (b"", b"null"):
        raise InvalidRequest("cache_salt must be a text that is not empty", param="cache_salt")
    return salt, session


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T | None:
    try:
        return decoder.decode(data) if bytes(data) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


#: A picture: a long run of base64, in which JSON may write a backslash before a slash.
_PICTURE = re.compile(rb"""(?:base64,|"data"\s{0,9}:\s{0,9}")([A-Za-z0-9+/=\\]{4096,})""")


def _without_pictures(data: bytes) -> int:
    """The size of a body without its pictures."""
    return len(data) - sum(len(match[1]) for match in _PICTURE.finditer(data))


def _check_media_type(declared: str, needed: str) -> None:
    # A web page of another origin may send any other type without asking, and so make a browser start work here.
    if declared.partition(";")[0].strip().lower() != needed:
        raise WrongMediaType(f"send the body as `Content-Type: {needed}`, not as {declared or 'no type'!r:.80}")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(f"the body is larger than the limit of {limit} bytes")
