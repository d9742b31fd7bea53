"""Attacks on HTTP itself: framing that proxies read otherwise, headers without end, and what HTTP has besides."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator

from benchmarks.attack import wire
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import MODEL, Served, serving
from benchmarks.attack.wire import CHAT, HOST, JSON

_GET = b"GET /version HTTP/1.1\r\n"
_POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON
_BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()
_HIDDEN = b"0\r\n\r\nGET /hidden HTTP/1.1\r\n" + HOST + b"\r\n"

#: Requests that two readers could cut apart differently (RFC 9112, 11.2), or that are none.
SMUGGLED: dict[str, bytes] = {
    "Content-Length beside chunked": _POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + _HIDDEN,
    "chunked beside Content-Length": _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + _HIDDEN,
    "two Content-Lengths": _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a list of Content-Lengths": _POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed Content-Length": _POST + b"Content-Length: +5\r\n\r\nhello",
    "a hexadecimal Content-Length": _POST + b"Content-Length: 0x5\r\n\r\nhello",
    "a Content-Length of 30 digits": _POST + b"Content-Length: %s\r\n\r\nhello" % (b"9" * 30),
    "xchunked": _POST + b"Transfer-Encoding: xchunked\r\n\r\n" + _HIDDEN,
    "gzip, chunked": _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + _HIDDEN,
    "chunked, identity": _POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + _HIDDEN,
    "chunked twice": _POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + _HIDDEN,
    "a vertical tab before chunked": _POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + _HIDDEN,
    "a blank before the colon": _POST + b"Transfer-Encoding : chunked\r\n\r\n" + _HIDDEN,
    "a folded header": _POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n" + _HIDDEN,
    "bare line feeds": b"POST / HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0\n\n",
    "a bare carriage return in a value": _POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n",
    "a NUL in a header": _POST + b"X: a\0b\r\n\r\n",
    "a chunk size with a sign": _POST + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a chunk size of 17 digits": _POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too short": _POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel\r\n0\r\n\r\n",
    "two Hosts": _GET + HOST + HOST + b"\r\n",
    "no Host": _GET + b"\r\n",
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "HTTP/2.0": b"GET /version HTTP/2.0\r\n" + HOST + b"\r\n",
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a blank in the target": b"GET /ver sion HTTP/1.1\r\n" + HOST + b"\r\n",
}
BOMBS: dict[str, bytes] = {
    "a header of 1 MB": _GET + HOST + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "100,000 headers": _GET + HOST + b"X: a\r\n" * 100_000 + b"\r\n",
    "a target of 1 MB": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "1 MB of chunk extensions": _POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * (1 << 20),
    "1 MB of trailers": _POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 180_000 + b"\r\n",
}


@attack
async def protocol() -> AsyncIterator[Row]:
    async with serving() as served:
        for name, cases in (("request smuggling", SMUGGLED), ("header bombs", BOMBS)):
            memory = served.memory
            wrong = [case for case, data in cases.items() if not await _refused(served, data)]
            yield Row(
                f"{name}: {len(cases)} cases",
                "400, and closed",
                f"{len(cases) - len(wrong)} refused{''.join(f'; not: {case}' for case in wrong)}; "
                f"{served.memory - memory:+.0f} MB",
                not wrong and served.memory - memory < 50,
            )
        async for row in _besides(served):
            yield row


async def _refused(served: Served, data: bytes) -> bool:
    answer = await wire.send(served.port, data, seconds=5)
    return answer.status == 400 and answer.closed and b"/hidden" not in answer.body


async def _besides(served: Served) -> AsyncIterator[Row]:
    old = await wire.send(served.port, b"GET /version HTTP/1.0\r\nHost: localhost\r\n\r\n", seconds=5)
    yield Row("HTTP/1.0", "answered, and closed", f"{old.status}, {_ended(old)}", old.status == 200 and old.closed)

    absolute = await wire.send(
        served.port, b"GET http://evil.example/version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", seconds=5
    )
    yield Row(
        "an absolute target with a foreign host", "refused, or the path alone counts", f"{absolute.status}",
        absolute.status in (200, 400, 404, 421),
    )  # fmt: skip

    upgrades = {
        "websocket": b"Sec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n",
        "h2c": b"HTTP2-Settings: AAMAAABk\r\n",
    }
    statuses = []
    for protocol, more in upgrades.items():
        lines = b"Connection: Upgrade, close\r\nUpgrade: %s\r\n%s" % (protocol.encode(), more)
        statuses.append((await wire.send(served.port, _GET + HOST + lines + b"\r\n", seconds=5)).status)
    yield Row(
        "upgrades to WebSocket and h2c", "not taken", ", ".join(map(str, statuses)),
        101 not in statuses,
    )  # fmt: skip

    expecting = _POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    answers = [
        await wire.send(served.port, expecting % len(_BODY), _BODY, pause=0.2),
        await wire.send(served.port, expecting % 10**9, seconds=5),
    ]
    yield Row(
        "Expect: 100-continue, with a body of 90 bytes and of 1 GB",
        "200; 413 at once",
        ", ".join(str(answer.status) for answer in answers),
        [answer.status for answer in answers] == [200, 413],
    )

    methods = [b"TRACE", b"CONNECT", b"DELETE", b"BREW", b"OPTIONS"]
    found = []
    for method in methods:
        target = b"127.0.0.1:1" if method == b"CONNECT" else b"/version"
        request = b"%s %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (method, target, HOST)
        found.append((await wire.send(served.port, request, seconds=5)).status)
    yield Row(
        "TRACE, CONNECT, DELETE, BREW, OPTIONS", "refused", ", ".join(map(str, found)),
        all(400 <= each < 500 for each in found),
    )  # fmt: skip

    bomb = gzip.compress(b" " * (200 << 20))
    memory = served.memory
    compressed = await wire.ask(served.port, CHAT, bomb, b"Content-Encoding: gzip\r\n")
    yield Row(
        f"a compressed body: {len(bomb) / 1e3:.0f} KB that unpack to 210 MB",
        "refused, not unpacked",
        f"{compressed.status}, {served.memory - memory:+.0f} MB",
        compressed.status in (400, 415) and served.memory - memory < 50,
    )

    plain = await wire.send(served.port, wire.post(CHAT, _BODY).replace(JSON, b"Content-Type: text/plain\r\n"))
    foreign = [
        (await wire.get(served.port, path, b"Host: evil.example\r\n")).status
        for path in ("/v1/models", "/metrics", "/health")
    ]
    yield Row(
        "a web page: text/plain, a foreign Host",
        "415, 421",
        f"{plain.status}; {', '.join(map(str, foreign))}",
        plain.status == 415 and set(foreign) == {421},
    )

    forged = b"x-request-id: a\x1b[2Jb\r\n"
    answer = await wire.get(served.port, "/version%0d%0aforged:%201", HOST, forged)
    yield Row(
        "line breaks and escapes in path and x-request-id",
        "not in headers or log",
        f"{answer.status}",
        b"\x1b" not in answer.head and b"\r\nforged" not in answer.head and "\x1b" not in served.log,
    )


def _ended(answer: wire.Answer) -> str:
    return "closed" if answer.closed else "open"
