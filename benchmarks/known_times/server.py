"""A server with known times, in a process of its own. Prints its port.

It reads and writes its sockets itself: an HTTP library would take longer than what is measured. The time of a request
is that at which the kernel received it, so that a request does not wait for the server's attention.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import statistics
import struct
import time
from typing import Any

_SO_TIMESTAMPNS = 35  # Linux; the standard library has no name for it
FIRST_S, TOKEN_S, BURST = 0.05, 0.01, 3
#: When the server really wrote: the first delta of each answer, and its time per token.
_WRITTEN: list[tuple[float, float]] = []
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Connection:
    """One connection of a client that sends one request after another."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._received = bytearray()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asyncio.get_running_loop().add_reader(accepted, self._read)

    def _read(self) -> None:
        data, ancillary, *_ = self._socket.recvmsg(2**20, 64)
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            return
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if len(body) >= int(headers.get("content-length", 0)):
            self._received.clear()
            self._answer(first.split()[1], body, _received_at(ancillary))

    def _answer(self, path: str, body: bytes, began: float) -> None:
        asked = json.loads(body or b"{}")
        if path == "/v1/models":
            self._whole({"data": [{"id": "known-times", "max_model_len": 100_000}]})
        elif path == "/tokenize":
            self._whole({"count": _count(asked)})
        elif path == "/times":
            self._whole([statistics.median(each) for each in zip(*_WRITTEN, strict=True)])
            _WRITTEN.clear()
        elif path != "/v1/chat/completions" or "dovetail" in asked:
            self._whole({"error": {"message": "unknown"}}, "400 Bad Request")
        elif asked.get("stream"):
            self._socket.sendall(_STREAM)
            self._stream(asked, began)
        else:
            usage = {"prompt_tokens": _count(asked), "completion_tokens": 1, "total_tokens": _count(asked) + 1}
            message = {"role": "assistant", "content": "x"}
            self._whole({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})

    def _whole(self, value: Any, status: str = "200 OK") -> None:
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode() + data)

    def _stream(self, asked: Any, began: float) -> None:
        """Write each delta at a time known from the beginning, so that the server's own delays do not add up."""
        loop, tokens = asyncio.get_running_loop(), asked.get("max_tokens") or asked["max_completion_tokens"]
        deltas = _deltas(_count(asked), tokens)
        written: list[float] = []

        def write(place: int) -> None:
            self._socket.sendall(deltas[place][1])
            written.append(loop.time() - began)
            if place < len(deltas) - 1:
                loop.call_at(began + deltas[place + 1][0], write, place + 1)
            elif place:
                _WRITTEN.append((written[0], (written[-1] - written[0]) / (tokens - BURST)))

        loop.call_at(began + deltas[0][0], write, 0)


_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "known-times"}
_FINISH = {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


def _count(asked: Any) -> int:
    content = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
    text = content if isinstance(content, str) else content[0]["text"]  # vLLM's client sends parts
    return 10 + len(text.split())


@functools.cache
def _deltas(prompt: int, tokens: int) -> list[tuple[float, bytes]]:
    """When each delta is due, and its bytes; made once, because making them takes longer than writing them."""
    ends = [min(done, tokens) for done in range(BURST, tokens + BURST, BURST)]
    deltas = [(FIRST_S + (until - ends[0]) * TOKEN_S, _chunk(_delta(prompt, until))) for until in ends]
    end = b"".join(map(_chunk, (_FINISH, {**_delta(prompt, tokens), "choices": []}, None))) + b"0\r\n\r\n"
    return [*deltas[:-1], (deltas[-1][0], deltas[-1][1] + end)]


def _delta(prompt: int, until: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": until, "total_tokens": prompt + until}
    return {**_CHUNK, "choices": [{"index": 0, "delta": {"content": "x " * BURST}}], "usage": usage}


def _chunk(event: Any) -> bytes:
    data = b"data: " + (b"[DONE]" if event is None else json.dumps(event).encode()) + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _received_at(ancillary: Any) -> float:
    """When the kernel received the bytes, on the event loop's clock."""
    if not ancillary:  # the first bytes after the option was set for the first time on this machine
        return time.monotonic()
    seconds, nanoseconds = struct.unpack("@qq", ancillary[0][2])
    return float(time.monotonic() - (time.time() - seconds - nanoseconds / 1e9))


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # accepted connections have it from the beginning
    asyncio.get_running_loop().add_reader(listening, lambda: Connection(listening.accept()[0]))
    print(listening.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
