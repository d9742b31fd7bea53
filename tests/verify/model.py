"""A model that answers what the suites ask, in Kimi K2.5's language, and obeys constraints as any engine does.

It reads the prompt as text, so that a wrong prompt has a wrong answer. Where a grammar forbids its answer it goes on
with tokens that the grammar allows, as weights that were never trained on that schema would.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import dovetail
from dovetail.completion import Completion, Constraint, EngineInfo, MetricSample, TokenBatch
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.tokens import Tokenizer

TARGET = Path(dovetail.__file__).parent / "data" / "demo" / "target"
CONTEXT = 4096
#: What a grammar may want next, in the order in which the model prefers it: to end things, then the shortest values.
_CLOSING = (
    "<|tool_calls_section_end|>",
    "<|tool_call_end|>",
    "<|im_end|>",
    "</think>",
    '"}',
    "}",
    "]",
    '"',
    "0",
    "1",
    "-1",
)
_USER = re.compile(r"<\|im_user\|>user<\|im_middle\|>(.*?)<\|im_end\|>", re.DOTALL)
_RESULT = re.compile(r"## Return of [^\n]*\n(.*?)<\|im_end\|>", re.DOTALL)
_TOOL = re.compile(r"call the tool (\w+)")
_NEEDLE = re.compile(r"The city is (\w+)")
_CITY = re.compile(r"get the weather for city (\w+)")


@functools.cache
def tokenizer() -> Tokenizer:
    return dovetail.tokenizer(TARGET)


def wished(prompt: str) -> Message:
    """The answer that the model would like to give to a prompt."""
    users = [*_USER.finditer(prompt)]
    last = users[-1] if users else None
    results = _RESULT.findall(prompt[last.end() :]) if last else []
    cities = _CITY.findall(last[1]) + _NEEDLE.findall(last[1]) if last else []
    earlier = prompt.count("<|tool_call_begin|>")
    if not prompt.endswith(("<think>", "</think>")):
        return Message("<no turn of mine>")
    if results:
        return Message(f"The result is {results[-1].strip()}.")
    if cities and "type get_weather" in prompt:
        calls = (_call("get_weather", {"city": city}, earlier + i) for i, city in enumerate(cities))
        return Message("", "The user wants get_weather.", tuple(calls))
    if named := _TOOL.search(last[1]) if last else None:
        return Message("", "I call it.", (_call(named[1], {"wrong": 1}, earlier),))
    return Message("Hello there.", "This needs no tool, so I say hello.")


def _call(name: str, arguments: object, number: int) -> Call:
    return Call(f"functions.{name}:{number}", name, json.dumps(arguments))


class Model:
    """The engine. `sizes`: the tokens of its steps, when it drafts. `format`, `end_of_turn`: its language.

    `seen`: the completions that it got.
    """

    format: Format = KimiK25()
    end_of_turn = "<|im_end|>"

    def __init__(self, sizes: Sequence[int] = (1, 4, 2, 7), tokens: Tokenizer | None = None) -> None:
        self.tokenizer = tokens or tokenizer()
        self.end = self.tokenizer.control[self.end_of_turn]
        self.info = EngineInfo(CONTEXT, self.tokenizer.vocab_size, (self.end,), max(sizes) - 1, reports_steps=True)
        self.sizes = sizes
        self.seen: list[Completion] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def gauges(self) -> list[MetricSample]:
        return [MetricSample("up", {}, 1)]

    def wish(self, prompt: str, completion: Completion) -> Message:
        return wished(prompt)

    def constraint(self, completion: Completion) -> Constraint | None:
        """The constraint that the engine obeys."""
        return completion.constraint

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        self.seen.append(completion)
        prompt = self.tokenizer.decode(completion.prompt)
        thinking = prompt.endswith("<think>")
        wish = tuple(self.format.write(self.wish(prompt, completion), thinking=thinking).ids(self.tokenizer))
        ids = tuple(self._allowed(self.constraint(completion), wish, completion.max_tokens))
        drafts = completion.draft_tokens != 0
        for batch in self.batches(self.verified(ids) if drafts else ids, self.sizes if drafts else (1,)):
            yield batch

    def verified(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens after verification of drafts: the same ones, as law 12 has it."""
        return ids

    def batches(self, ids: Sequence[int], sizes: Sequence[int]) -> Iterator[TokenBatch]:
        at = number = 0
        while at < len(ids):
            size = sizes[number % len(sizes)]
            piece = tuple(ids[at : at + size])
            at, number = at + size, number + 1
            finish = ("stop" if ids[-1] == self.end else "length") if at >= len(ids) else None
            yield TokenBatch(piece, finish, drafted=size - 1, accepted=len(piece) - 1)

    def _allowed(self, constraint: Constraint | None, wish: Sequence[int], limit: int) -> Iterator[int]:
        """The tokens of `wish` as far as they are allowed, then whatever is."""
        guided = False
        for number in range(limit):
            token = None if guided or number >= len(wish) else wish[number]
            if constraint is not None and token != self.end and (token is None or not constraint.advance(token)):
                guided = True
                token = self._any(constraint)
                if token != self.end:
                    assert constraint.advance(token)
            elif constraint is not None and token == self.end and not _in(self._mask(constraint), token):
                guided, token = True, self._any(constraint)
                assert constraint.advance(token)
            if token is None:
                return
            yield token
            if token == self.end:
                return

    def _mask(self, constraint: Constraint) -> bytearray:
        row = bytearray(4 * -(-self.info.vocab_size // 32))
        constraint.fill(memoryview(row))
        return row

    def _any(self, constraint: Constraint) -> int:
        mask = self._mask(constraint)
        preferred = next((token for token in self._closing if _in(mask, token)), None)
        if preferred is not None:
            return preferred
        return next(token for token in range(self.info.vocab_size) if _in(mask, token))

    @functools.cached_property
    def _closing(self) -> list[int]:
        control = self.tokenizer.control
        return [control.get(text) or self.tokenizer.encode(text)[0] for text in _CLOSING]


def _in(mask: bytearray, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)
