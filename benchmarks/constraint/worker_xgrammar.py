"""xgrammar without an engine as a worker: with the tag that Dovetail writes, or with its own tag for the model.

It has as many compiler threads as engines give it, and its cache.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from typing import Any

import xgrammar

import dovetail
from benchmarks.constraint.measure import Job, Library, serve
from benchmarks.constraint.model_tags import MODEL_TAGS


class Sequence:
    def __init__(self, matcher: Any, bitmask: Any) -> None:
        self._matcher = matcher
        self._bitmask = bitmask
        self.advance = matcher.accept_token

    def fill(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bitmask)


class Xgrammar(Library):
    def open(self, job: Job) -> None:
        self._own = MODEL_TAGS[job["family"]] if job["variant"] == "own" else None
        self._format = dovetail.format(job["family"])
        self._tokenizer = dovetail.tokenizer(job["ranks"])
        size = self._tokenizer.vocab_size
        spelled = [self._tokenizer.token_bytes(token) for token in range(size)]
        self._vocabulary = xgrammar.TokenizerInfo(spelled, stop_token_ids=job["ends"])
        self._bitmask = xgrammar.allocate_token_bitmask(1, size)
        self.forget()

    def forget(self) -> None:
        self._compiler = xgrammar.GrammarCompiler(self._vocabulary)

    def _tag(self, request: Job) -> str:
        if self._own is not None:
            tag = xgrammar.get_model_structural_tag(self._own, request["tools"], reasoning="disabled")
            return str(tag.model_dump_json())
        grammar = self._format.grammar(request["tools"], thinking=False)
        assert grammar is not None
        return json.dumps(grammar.structural_tag(self._tokenizer.control))

    def start(self, request: Job) -> Sequence:
        compiled = self._compiler.compile_structural_tag(self._tag(request))
        return Sequence(xgrammar.GrammarMatcher(compiled), self._bitmask)

    def write(self, request: Job) -> bool:
        return bool(self._tag(request))

    async def serve(self, request: Job) -> None:
        """As a gateway like ours would."""
        await asyncio.to_thread(self.start, request)

    def kept(self) -> int | None:
        return int(self._compiler.get_cache_size_bytes())


def load() -> tuple[Job, Library]:
    """See `measure.serve` for the contract."""
    return {"versions": {"xgrammar": importlib.metadata.version("xgrammar")}}, Xgrammar()


if __name__ == "__main__":
    serve(load)
