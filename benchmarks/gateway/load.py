"""A client that costs little: sends ready-made requests, and looks at the answers only when all are there.

usage: python load.py       jobs are JSON lines on standard input, answers JSON lines on standard output:
{"port": …, "path": …, "body": {…}, "streams": N}     → N requests at once, each on a connection of its own
{"port": …, "path": …, "body": {…}, "one_by_one": N, "keep": bool}      → N requests, each after the answer before
The first may have "within": PATH of a file that is written as soon as every stream has its first bytes, and "health":
the path of a page that is asked for every 10 ms from then on, on connections of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

Job = dict[str, Any]


class Exchange(asyncio.Protocol):
    """One request and its answer, kept as it came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parts: list[bytes] = []
        self.first = 0.0
        self._last = b""
        self._whole = 0
        self.size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no asyncio.Transport
        transport.write(self._request)

    def again(self) -> None:
        """The same request once more, on the same connection."""
        self.done = asyncio.get_running_loop().create_future()
        self.parts, self.size, self._whole, self._last = [], 0, 0, b""
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.parts:
            self.first = time.perf_counter()
            head, _, _ = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._whole = len(head) + 4 + int(length) if length else 0
        self.parts.append(data)
        self.size += len(data)
        self._last = (self._last + data)[-5:] if len(data) < 5 else data[-5:]
        ended = self.size >= self._whole if self._whole else self._last == b"0\r\n\r\n"
        if ended and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def request_of(job: Job) -> bytes:
    body = json.dumps(job["body"]).encode() if "body" in job else b""
    method = b"POST" if body else b"GET"
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    head %= method, job["path"].encode(), len(body)
    for name, value in job.get("headers", {}).items():
        head += f"{name}: {value}\r\n".encode()
    return head + b"\r\n" + body


async def exchange(port: int, request: bytes) -> Exchange:
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Exchange(request), "127.0.0.1", port)
    return protocol


async def healths(port: int, path: str, seconds: list[float]) -> None:
    """Ask for a page every 10 ms until cancelled."""
    request = request_of({"path": path, "headers": {"Connection": "close"}})
    while True:
        begun = time.perf_counter()
        asked = await exchange(port, request)
        await asked.done
        asked.transport.abort()
        seconds.append(time.perf_counter() - begun if asked.parts[:1] and b" 200 " in asked.parts[0][:16] else 1e9)
        await asyncio.sleep(max(0.0, 0.01 - seconds[-1]))


async def at_once(job: Job) -> Job:
    request = request_of(job)
    begun = time.perf_counter()
    running = await asyncio.gather(*(exchange(job["port"], request) for _ in range(job["streams"])))
    health: list[float] = []
    asking: asyncio.Task[None] | None = None
    if "within" in job:
        while not all(each.parts for each in running):
            await asyncio.sleep(0.01)
        Path(job["within"]).touch()
        asking = asyncio.ensure_future(healths(job["port"], job["health"], health))
    for each in running:
        await each.done
    seconds = time.perf_counter() - begun
    if asking is not None:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    for each in running:
        each.transport.abort()
    answers = [text_of(b"".join(each.parts)) for each in running]
    first = [each.first - begun for each in running]
    writes = sum(len(each.parts) for each in running)
    return {"seconds": seconds, "first": first, "answers": sorted(set(answers)), "reads": writes, "health": health}


async def one_by_one(job: Job) -> Job:
    request, seconds, answers = request_of(job), [], set()
    kept: Exchange | None = None
    for _ in range(job["one_by_one"]):
        begun = time.perf_counter()
        if kept is not None:
            asked = kept
            asked.again()
        else:
            asked = await exchange(job["port"], request)
        await asked.done
        seconds.append(time.perf_counter() - begun)
        answers.add(text_of(b"".join(asked.parts)))
        if job["keep"]:
            kept = asked
        else:
            asked.transport.abort()
    return {"latencies": seconds, "answers": sorted(answers)}


def text_of(answer: bytes) -> str:
    """The text that an answer of chat completions or completions adds up to; of any other, its beginning."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head[:16]:
        return answer[:900].decode(errors="replace")
    if b"chunked" in head.lower():
        whole, rest = b"", body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            whole, rest = whole + rest[:length], rest[length + 2 :]
        body = whole
    if b"text/event-stream" not in head.lower():
        return _text(json.loads(body))
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    return "".join(_text(json.loads(event)) for event in events)


def _text(value: Job) -> str:
    text = ""
    for choice in value.get("choices", []):
        part = choice.get("delta") or choice.get("message") or choice
        text += part.get("reasoning_content") or part.get("content") or part.get("text") or ""
    return text


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = json.loads(line)
        try:
            result = await (at_once(job) if "streams" in job else one_by_one(job))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
