"""An engine that computes nothing: the answer is bytes that were made before. Needs the standard library alone.

usage: python upstream.py TOKENS.json      TOKENS.json: [[id, text], …], the longest answer

Prints its port. Speaks what vLLM answers to POST /v1/completions (text and token ids), to POST /v1/chat/completions
(text), and to POST /inference/v1/generate (token ids, after a prompt with pictures). Each token is an event, and a
chunk of HTTP, of its own, but after pictures. `GET /pace/WHAT` sets how answers are written from then on: `whole`, all
in one write; `0`, one write a token, a token to every stream in turn, without a pause; or so many milliseconds between
two tokens of a stream. `GET /streaming` counts the answers that are begun and not ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
_LAST = b"0\r\n\r\n"


class Answers:
    """The ready-made chunks of HTTP of both APIs."""

    def __init__(self, tokens: list[tuple[int, str]]) -> None:
        self._tokens = tokens
        self._made: dict[tuple[bool, bool, int], list[bytes]] = {}
        self._after_pictures: dict[int, bytes] = {}

    def of(self, chat: bool, streams: bool, count: int) -> list[bytes]:
        """What an answer of `count` tokens is written as, one item a token, the headers with the first."""
        key = chat, streams, count
        if key not in self._made:
            self._made[key] = self._stream(chat, count) if streams else [self._whole(chat, count)]
        return self._made[key]

    def after_pictures(self, count: int) -> bytes:
        """An answer of `count` tokens to a prompt of a thousand."""
        if count not in self._after_pictures:
            *ids, last = (token for token, _ in self._tokens[:count])
            first = {"choices": [{"index": 0, "token_ids": ids, "finish_reason": None}], "prompt_token_ids": [1] * 1000}
            end = {"choices": [{"index": 0, "token_ids": [last], "finish_reason": "length"}]}
            events = _event(first) + _event(end) + _chunk(b"data: [DONE]\n\n") + _LAST
            head = HEAD % b"text/event-stream" + b"Transfer-Encoding: chunked\r\n\r\n"
            self._after_pictures[count] = head + events
        return self._after_pictures[count]

    def _stream(self, chat: bool, count: int) -> list[bytes]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        chunks = []
        for number, (token, text) in enumerate(self._tokens[:count], start=1):
            finish = "length" if number == count else None
            own = {"delta": {"content": text}} if chat else {"text": text, "token_ids": [token]}
            chunks.append(_event({**_about(kind), "choices": [{"index": 0, **own, "finish_reason": finish}]}))
        usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
        chunks[0] = HEAD % b"text/event-stream" + b"Transfer-Encoding: chunked\r\n\r\n" + chunks[0]
        chunks[-1] += _event({**_about(kind), "choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + _LAST
        return chunks

    def _whole(self, chat: bool, count: int) -> bytes:
        text = "".join(text for _, text in self._tokens[:count])
        ids = [token for token, _ in self._tokens[:count]]
        own = {"message": {"role": "assistant", "content": text}} if chat else {"text": text, "token_ids": ids}
        usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
        kind = "chat.completion" if chat else "text_completion"
        choice = {"index": 0, **own, "finish_reason": "length"}
        return page({**_about(kind), "choices": [choice], "usage": usage})


def _about(kind: str) -> dict[str, object]:
    return {"id": "cmpl-1", "object": kind, "created": 1, "model": "m"}


def _event(value: object) -> bytes:
    return _chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def page(value: object) -> bytes:
    body = json.dumps(value).encode()
    return HEAD % b"application/json" + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Upstream:
    """All connections of the server, and how answers are written."""

    def __init__(self, tokens: list[tuple[int, str]]) -> None:
        self.answers = Answers(tokens)
        self.pace = "whole"
        models = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 8192}
        self.pages = {
            b"/health": page({}),
            b"/metrics": HEAD % b"text/plain" + b"Content-Length: 0\r\n\r\n",
            b"/v1/models": page({"object": "list", "data": [models]}),
        }
        #: Answers that are being written, each with the number of its next token.
        self._running: dict[Connection, tuple[list[bytes], int]] = {}
        self._writing: asyncio.Task[None] | None = None

    def start(self, connection: Connection, chunks: list[bytes]) -> None:
        """Write an answer."""
        if self.pace == "whole" or len(chunks) == 1:
            connection.transport.write(b"".join(chunks))
            return
        self._running[connection] = chunks, 0
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    def end(self, connection: Connection) -> None:
        self._running.pop(connection, None)

    @property
    def streaming(self) -> int:
        """Answers of which tokens are written, but not all."""
        return sum(number > 0 for _, number in self._running.values())

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while self._running:
            for connection, (chunks, number) in [*self._running.items()]:
                if connection.paused:
                    continue
                connection.transport.write(chunks[number])
                if number + 1 < len(chunks):
                    self._running[connection] = chunks, number + 1
                else:
                    self.end(connection)
            at += int(self.pace) / 1000 if self.pace != "whole" else 0
            await asyncio.sleep(max(0, at - loop.time()))
        self._writing = None


class Connection(asyncio.Protocol):
    """One connection. A request's bytes may come in pieces, but no two requests at once."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._data = b""
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.end(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, ends, body = self._data.partition(b"\r\n\r\n")
        if not ends:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(body) >= length:
            self._data = b""
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        upstream = self._upstream
        if path.startswith(b"/pace/"):
            upstream.pace = path[6:].decode()
            self.transport.write(page({}))
        elif path == b"/streaming":
            self.transport.write(page({"count": upstream.streaming}))
        elif path in (b"/v1/completions", b"/v1/chat/completions"):
            request = json.loads(body)
            count = request.get("max_tokens") or request.get("max_completion_tokens") or 16
            chunks = upstream.answers.of(path == b"/v1/chat/completions", bool(request.get("stream")), count)
            upstream.start(self, chunks)
        elif path == b"/inference/v1/generate":
            if b'base64,AAAA"' in body:  # by which Dovetail asks whether the model sees
                refused = page({"error": {"message": "Failed to load image: cannot identify image file", "code": 400}})
                self.transport.write(refused.replace(b"200 OK", b"400 Bad Request", 1))
            else:
                count = json.loads(body)["sampling_params"]["max_tokens"]
                self.transport.write(upstream.answers.after_pictures(count))
        elif path in upstream.pages:
            self.transport.write(upstream.pages[path])
        else:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def main(tokens: Path) -> None:
    upstream = Upstream([(token, text) for token, text in json.loads(tokens.read_text())])
    server = await asyncio.get_running_loop().create_server(lambda: Connection(upstream), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        uvloop.run(main(Path(sys.argv[1])))
