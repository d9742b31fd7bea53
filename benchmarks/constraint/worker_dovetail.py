"""Dovetail as a worker: the grammar in Lark for llguidance, and the whole gateway for the event loop."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import AsyncIterator

import httpx

import dovetail
from benchmarks.constraint.measure import Job, Library, serve
from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch
from dovetail.gateway.app import create_app
from dovetail.gateway.settings import Settings
from dovetail.grammar import Grammar, matcher
from dovetail.tokens import Tokenizer


class Sequence:
    def __init__(self, made: matcher.Matcher, row: memoryview) -> None:
        self._matcher = made
        self._row = row
        self.advance = made.advance

    def fill(self) -> None:
        self._matcher.fill(self._row)


class Dovetail(Library):
    def open(self, job: Job) -> None:
        self._format = dovetail.format(job["family"])
        self._tokenizer = dovetail.tokenizer(job["ranks"])
        self._ends = tuple(job["ends"])
        self._row = memoryview(bytearray((self._tokenizer.vocab_size + 31) // 32 * 4))
        matcher.compile(self._grammar({"tools": [_TOOL]}), self._tokenizer, self._ends)  # brings the vocabulary
        engine = Silent(self._tokenizer, self._ends)
        settings = Settings(served_model_name="bench", max_body_bytes=1 << 26)
        transport = httpx.ASGITransport(create_app(engine, self._format, self._tokenizer, settings))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=600)

    def _grammar(self, request: Job) -> Grammar:
        grammar = self._format.grammar(request["tools"], thinking=False)
        assert grammar is not None
        return grammar

    def forget(self) -> None:
        matcher.COMPILED.clear()

    def start(self, request: Job) -> Sequence:
        return Sequence(matcher.compile(self._grammar(request), self._tokenizer, self._ends), self._row)

    def write(self, request: Job) -> bool:
        return bool(self._grammar(request).lark(self._tokenizer.control))

    def sent(self, request: Job) -> bytes:
        messages = [{"role": "user", "content": "Go on."}]
        return json.dumps({"model": "bench", "messages": messages, "tools": request["tools"]}).encode()

    async def serve(self, request: bytes) -> None:
        answer = await self._client.post("/v1/chat/completions", content=request, headers=_JSON)
        if answer.status_code != 200:
            raise RuntimeError(f"the gateway answered {answer.text}")


_JSON = {"content-type": "application/json"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Silent:
    """An engine whose every answer is the end of the turn."""

    def __init__(self, tokenizer: Tokenizer, ends: tuple[int, ...]) -> None:
        self.info = EngineInfo(context=1 << 20, vocab_size=tokenizer.vocab_size, eos_ids=ends, draft_tokens=0)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        yield TokenBatch((self.info.eos_ids[0],), "stop")

    def gauges(self) -> list[MetricSample]:
        return []


def load() -> tuple[Job, Library]:
    """See `measure.serve` for the contract."""
    names = ("dovetail", "llguidance")
    return {"versions": {name: importlib.metadata.version(name) for name in names}}, Dovetail()


if __name__ == "__main__":
    serve(load)
