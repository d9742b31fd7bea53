"""Raw HTTP/1.1 over sockets, for requests that no client library would send."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, NamedTuple

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
CHAT = "/v1/chat/completions"
_READ_S = 60.0
#: What an attacker with a small memory reads at most of one answer.
_MOST = 1 << 26


class Answer(NamedTuple):
    """`status` 0: nothing that is HTTP came. `closed`: the server closed the connection."""

    status: int
    head: bytes
    body: bytes
    closed: bool

    @property
    def error(self) -> str:
        """The message of an error, whatever the API."""
        try:
            return str(json.loads(self.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return ""

    def header(self, name: str) -> str:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""


class Connection:
    """One connection to the server on `port`. `source`: the address that it comes from."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, source: str = "127.0.0.1", room: int | None = None) -> Connection:
        """`room`: bytes that the kernel takes for a client that does not read."""
        peer = socket.socket()
        if room is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        peer.bind((source, 0))
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=peer, limit=1 << 16))

    async def send(self, data: bytes) -> bool:
        """Whether the server still takes bytes."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return False
        return not self.writer.is_closing()

    async def rest(self, seconds: float = _READ_S) -> tuple[bytes, bool]:
        """What comes within so many seconds, and whether the server then has closed the connection."""
        got = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while len(got) < _MOST and (part := await self.reader.read(1 << 16)):
                    got += part
            return bytes(got), True
        except TimeoutError:
            return bytes(got), False
        except ConnectionError:
            return bytes(got), True

    def close(self) -> None:
        self.writer.transport.abort()


async def send(port: int, *parts: bytes, seconds: float = _READ_S, pause: float = 0.0) -> Answer:
    """The answer to `parts` on a connection of their own, read to its end or for so many seconds."""
    connection = await Connection.open(port)
    try:
        for part in parts:
            if not await connection.send(part):
                break
            await asyncio.sleep(pause)
        return parsed(*await connection.rest(seconds))
    finally:
        connection.close()


def parsed(got: bytes, closed: bool) -> Answer:
    head, _, body = got.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if head.startswith(b"HTTP/1.1 ") and words[1].isdigit() else 0
    if status == 100:
        return parsed(body, closed)
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return Answer(status, head, body, closed)


def _unchunked(body: bytes) -> bytes:
    whole = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:
            break
        whole += body[:length]
        body = body[length + 2 :]
    return bytes(whole)


def post(path: str, body: bytes, *headers: bytes, close: bool = True) -> bytes:
    """A whole request."""
    lines = b"".join(headers) + (b"Connection: close\r\n" if close else b"")
    head = b"POST %s HTTP/1.1\r\n%s%s%sContent-Length: %d\r\n\r\n" % (path.encode(), HOST, JSON, lines, len(body))
    return head + body


async def ask(port: int, path: str, body: Any, *headers: bytes, seconds: float = _READ_S) -> Answer:
    """POST `body`, as JSON if it is not bytes yet."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await send(port, post(path, data, *headers), seconds=seconds)


async def get(port: int, path: str, *headers: bytes, seconds: float = _READ_S) -> Answer:
    lines = b"".join(headers) or HOST
    return await send(port, b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), lines), seconds=seconds)
