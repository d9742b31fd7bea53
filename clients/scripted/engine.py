"""An engine that plays the scripted model: it reads the prompt's token ids and writes the script's next answer.

It obeys the request's constraint like any other engine: an answer that the grammar forbids is not given.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from clients import tasks
from clients.scripted import answers
from clients.scripted.answers import OTHER, SCRIPTS, SHORTENED, Say, Turn
from clients.scripted.models import Model
from dovetail.completion import Completion, EngineInfo, Finish, MetricSample, Picture, TokenBatch, TokenLogprob
from dovetail.errors import EngineError
from dovetail.events import Call, Message

#: Tokens of one step, over and over: several, as with speculative decoding.
STEP_SIZES = (1, 4, 2, 7)
#: How long one step of the slow answer takes.
SLOW_STEP_S = 0.1
#: Log probabilities of one token.
LIKELY, UNLIKELY = -0.1, -3.0


class _NoSuchToolError(EngineError):
    """The script's answers are calls, and the request does not have their tools."""


class ScriptedEngine:
    """Answers by the scripts. `log`: a file to which each completion appends a line of JSON."""

    def __init__(self, model: Model, log: Path) -> None:
        self.info = EngineInfo(
            tasks.CONTEXT,
            model.tokenizer.vocab_size,
            (model.end_id,),
            draft_tokens=max(STEP_SIZES) - 1,
            prompt_logprobs=True,
            pictures=model.format.picture in model.tokenizer.control,
        )
        self._model = model
        self._log = log
        self._turns: dict[str, tuple[int, ...]] = {}
        self._grown: dict[str, int] = {}

    async def start(self) -> None:
        self._log.touch()

    async def stop(self) -> None:
        pass

    def gauges(self) -> list[MetricSample]:
        return [MetricSample("up", {}, 1)]

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        name, say, ids, results = self._answer(completion)
        if completion.ignore_eos and completion.constraint is None:
            ids = tuple(itertools.islice(itertools.cycle(ids[:-1]), completion.max_tokens))
        ids = ids[: completion.max_tokens]
        self._record(name, say, completion, ids, results)
        given = 0
        try:
            for batch in self._batches(completion, ids):
                if name == "slow":
                    await asyncio.sleep(SLOW_STEP_S)
                given += len(batch.ids)
                yield batch
        finally:
            if given < len(ids):
                self._write({"script": "stopped", "calls": [], "prompt": 0, "output": 0, "differs": None})

    def _answer(self, completion: Completion) -> tuple[str, Say, tuple[int, ...], list[str]]:
        """The script's name, its first answer that the constraint allows, that answer's tokens, the tools' results."""
        prompt = self._read(completion)
        found = [(match.start(), script, match) for script in SCRIPTS for match in script.pattern.finditer(prompt)]
        if not found:
            return "other", *self._first(OTHER, prompt, completion), []
        at, script, match = max(found, key=lambda place: place[0])
        results = self._model.wire.results(prompt[at:])
        turn, toolless = script.turn(match, results), OTHER
        if script.name == "grow":
            earlier = self._grown.get(match["number"], 0)
            self._grown[match["number"]] = max(earlier, len(results))
            turn = SHORTENED if 0 < len(results) <= earlier else turn
            toolless = SHORTENED if earlier else OTHER
        try:
            return script.name, *self._first(turn, prompt, completion), results
        except _NoSuchToolError:  # an agent's request for a title or a summary has the task's words, but no tools
            return "other", *self._first(toolless, prompt, completion), results

    def _read(self, completion: Completion) -> str:
        """The prompt's text, in which a picture is a text that tells its color."""
        prompt = self._model.tokenizer.decode(completion.prompt)
        if not completion.pictures:
            return prompt
        colors = map(_color, completion.pictures)
        return re.sub(re.escape(self._model.format.picture or ""), lambda _: answers.seen(next(colors)), prompt)

    def _first(self, turn: Turn, prompt: str, completion: Completion) -> tuple[Say, tuple[int, ...]]:
        """The first answer that the constraint allows, with its tokens. Raises `EngineError` if there is none."""
        furthest = ""
        for say in itertools.chain.from_iterable(map(_orders, turn)):
            ids = self._written(say, prompt)
            taken = _taken(completion, ids)
            if taken == len(ids):
                return say, ids
            furthest = max(furthest, self._model.tokenizer.decode(ids[:taken]), key=len)
        if not any(name in furthest for say in turn for name, _ in say.calls):
            raise _NoSuchToolError(f"no tool for any of {turn}")
        raise EngineError(f"the grammar forbids every answer, after {furthest!r}")

    def _written(self, say: Say, prompt: str) -> tuple[int, ...]:
        earlier = len(self._model.wire.call.findall(prompt))
        calls = tuple(
            Call(
                f"functions.{name}:{earlier + number}",
                name,
                json.dumps(arguments, ensure_ascii=False),
            )
            for number, (name, arguments) in enumerate(say.calls)
        )
        thinking = prompt.rstrip().endswith("<think>")
        message = Message(say.text, say.reasoning if thinking else "", calls)
        return tuple(self._model.writer.write(message, thinking=thinking).ids(self._model.tokenizer))

    def _batches(self, completion: Completion, ids: Sequence[int]) -> Iterator[TokenBatch]:
        finish: Finish = "stop" if ids and ids[-1] == self._model.end_id else "length"
        at = 0
        for size in itertools.cycle(STEP_SIZES):
            piece = tuple(ids[at : at + size])
            at += size
            done = at >= len(ids)
            scored = piece if completion.logprobs is not None else ()
            yield TokenBatch(
                piece,
                finish if done else None,
                drafted=size,
                accepted=len(piece) - 1,
                logprobs=tuple(_logprob(token, LIKELY) for token in scored),
                prompt_logprobs=self._prompt_logprobs(completion) if at == size else (),
            )
            if done:
                return

    def _prompt_logprobs(self, completion: Completion) -> tuple[TokenLogprob, ...]:
        """A prompt is likely if it ends with a right answer of the exam, or with the one that the model gets wrong."""
        if completion.prompt_logprobs is None:
            return ()
        likely = self._model.tokenizer.decode(completion.prompt).endswith(answers.PREFERRED)
        return tuple(_logprob(token, LIKELY if likely else UNLIKELY) for token in completion.prompt[1:])

    def _record(self, name: str, say: Say, completion: Completion, ids: Sequence[int], results: Sequence[str]) -> None:
        """Append what was asked and answered. `differs`: where the prompt does not begin with the turn before."""
        earlier = self._turns.get(name, ())
        common = next(
            (i for i, (a, b) in enumerate(zip(earlier, completion.prompt, strict=False)) if a != b),
            min(len(earlier), len(completion.prompt)),
        )
        self._turns[name] = (*completion.prompt, *ids)
        line: dict[str, object] = {
            "script": name,
            "calls": [called for called, _ in say.calls],
            "prompt": len(completion.prompt),
            "output": len(ids),
            "differs": None,
            "results": [result[-400:] for result in results],
        }
        if common < len(earlier):
            decode, around = self._model.tokenizer.decode, slice(max(common - 4, 0), common + 8)
            line["differs"] = [decode(earlier[around]), decode(completion.prompt[around])]
        self._write(line)

    def _write(self, line: dict[str, object]) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps(line) + "\n")


def _color(picture: Picture) -> str:
    """The color of a picture whose pixels are alike: red, green or blue."""
    pixel = Image.open(io.BytesIO(picture.data)).convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return ("red", "green", "blue")[pixel.index(max(pixel))]


def _logprob(token: int, logprob: float) -> TokenLogprob:
    return TokenLogprob(token, logprob, ((token, logprob),))


def _orders(say: Say) -> Iterator[Say]:
    """The answer with its arguments in each order: a format may show parameters otherwise than the client does."""
    for calls in itertools.product(*(_arranged(name, arguments) for name, arguments in say.calls)):
        yield say._replace(calls=calls)


def _arranged(name: str, arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    inner = (arguments, json.loads(json.dumps(arguments, sort_keys=True)))
    return [(name, dict(order)) for each in inner for order in itertools.permutations(each.items())]


def _taken(completion: Completion, ids: Sequence[int]) -> int:
    """How many of `ids` the constraint takes. Its state does not change."""
    constraint = completion.constraint
    if constraint is None:
        return len(ids)
    taken = sum(1 for _ in itertools.takewhile(constraint.advance, ids))
    constraint.rollback(taken)
    return taken
