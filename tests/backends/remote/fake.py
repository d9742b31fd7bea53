"""A small HTTP server that behaves like vLLM, SGLang or llama.cpp, with a model that adds up its prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Self

from dovetail.backends.remote import Server, Vocabulary
from dovetail.completion import Completion, MetricSample, Sampling, TokenBatch
from tests.backends.vllm_program import NO_PROMPT, vllm_refusal

EOS = 2
VOCABULARY = Vocabulary(100, (EOS,), {"[end]": EOS, "<|call|>": 90, "[mark]": 91, "[other mark]": 92})
PROMPT = (5, 6, 7)

#: The body of a completion's request -> the pieces of its answer, which are sent as they are.
Answer = Callable[[dict[str, Any]], AsyncIterator[bytes]]


def completion(max_tokens: int = 8, prompt: Sequence[int] = PROMPT, **fields: Any) -> Completion:
    return Completion(tuple(prompt), max_tokens, **{"sampling": Sampling(temperature=0)} | fields)


def continuation(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The model: never says EOS."""
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(3 + (sum(ids) * 31 + len(ids)) % 97)
    return ids[len(prompt) :]


async def whole(server: Server, requested: Completion) -> list[TokenBatch]:
    return [batch async for batch in server.complete(requested)]


def ids_of(batches: Iterable[TokenBatch]) -> list[int]:
    return [token for batch in batches for token in batch.ids]


def sse(*events: object) -> bytes:
    return b"".join(
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n" for event in events
    )


def vllm_chunk(ids: Sequence[int], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "x" * len(ids), "token_ids": list(ids), "finish_reason": finish, **fields}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


async def vllm_answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
    ids = continuation(body["prompt"], body["max_tokens"])
    for token in ids[:-1]:
        yield sse(vllm_chunk([token]))
        await asyncio.sleep(0)
    yield sse(vllm_chunk(ids[-1:], "length"), {"choices": [], "usage": {"prompt_tokens": 3}}, b"[DONE]")


class Fake:
    """`async with Fake(…) as fake`: serves on `fake.url` until the end, or until `stop`; `start` brings it back.

    `backend` is who reads grammars in a vLLM; it and `budgets` are as in `vllm_refusal`. `pages` are what it has under
    other paths: a status, a body and perhaps headers, or JSON.
    """

    def __init__(
        self,
        owner: str = "vllm",
        answer: Answer = vllm_answer,
        context: int = 512,
        backend: str = "xgrammar",
        budgets: str = "off",
        **pages: object,
    ) -> None:
        self.answer, self.backend, self.budgets = answer, backend, budgets
        self.received: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.running = 0
        #: Paths at which nothing is answered.
        self.late: set[str] = set()
        self.pages: dict[str, object] = {
            "/health": {},
            "/v1/models": {"data": [{"id": "m", "owned_by": owner, "max_model_len": context}]},
            "/props": {
                "default_generation_settings": {"n_ctx": context},
                "model_alias": "m",
                "build_info": "b11312-0c1e57098",
            },
            # What llama.cpp says to a request for no token at all, which asks whether it can read a grammar.
            "/nothing": {"content": "", "tokens": [], "stop": True, "stop_type": "limit"},
            "/server_info": {"speculative_algorithm": None},
            "/metrics": (200, b""),
            # Of vLLM's it only matters whether there is one.
            **({"/tokenize": {}} if owner == "vllm" else {}),
        } | {f"/{name}": page for name, page in pages.items()}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self._port}"

    def server(self, **options: Any) -> Server:
        return Server(self.url, VOCABULARY, **options)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if it had died: connections break in the middle."""
        if self._server is not None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode(), reader, writer)
                if head.startswith(b"POST /completion ") or b"connection: close" in head.lower():
                    break  # llama.cpp closes after a stream, whatever it was asked
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.headers.append(head)
        path = head.split()[1]
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        data = await reader.readexactly(int(fields.get("content-length", 0)))
        if path in self.late:
            await asyncio.Event().wait()
        page = self.pages.get(path, (404, b"") if path == "/inference/v1/generate" else None)
        if callable(page):
            page = page(json.loads(data) if data else None)
        if page is None and path in ("/v1/completions", "/generate", "/completion"):
            body = json.loads(data)
            if body.get("n_predict") == 0:
                page = self.pages["/nothing"]
            elif body.get("prompt") == NO_PROMPT:
                page = vllm_refusal(body, self.backend, self.budgets)
            else:
                self.received.append(body)
        if page is None and path in ("/v1/completions", "/generate", "/completion", "/inference/v1/generate"):
            await self._stream(self.answer(self.received[-1]), fields.get("connection") == "close", reader, writer)
            return
        status, body, *more = (
            page if isinstance(page, tuple) else (200 if page is not None else 404, json.dumps(page).encode())
        )
        headers = b"Connection: close\r\n" if fields.get("connection") == "close" else b""
        headers += b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for each in more for name, value in each)
        writer.write(b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\n%s" % (status, headers))
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()

    async def _stream(
        self, pieces: AsyncIterator[bytes], closes: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        kind = b"text/event-stream"
        self.running += 1
        gone = asyncio.ensure_future(reader.read(1))
        try:
            async for piece in pieces:
                if kind:
                    if piece.startswith(b"{"):
                        kind = b"application/json"
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n" % kind)
                    writer.write(b"Connection: close\r\n\r\n" if closes else b"\r\n")
                    kind = b""
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)
                if gone.done():
                    raise ConnectionError
        finally:
            self.running -= 1
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        # Only now: what is read next is the next request.
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class Broken(OSError):
    """Raised by an answer: the connection breaks there."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def answered(
    owner: str,
    answer: Answer,
    requested: dict[str, Any] | None = None,
    check: Callable[[Fake], None] | None = None,
    gauges: list[MetricSample] | None = None,
    **pages: Any,
) -> list[TokenBatch]:
    """What becomes of one completion with the fields `asked`; `gauges` gets the server's at its end."""
    batches: list[TokenBatch] = []

    async def main() -> None:
        async with Fake(owner, answer, **pages) as fake:
            server = fake.server()
            try:
                await server.open()
                batches.extend(await whole(server, completion(**requested or {})))
                if check is not None:
                    check(fake)
                if gauges is not None:
                    gauges.extend(server.gauges())
            finally:
                await server.close()

    run(main)
    return batches
