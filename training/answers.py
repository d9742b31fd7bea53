"""The requests that a drafter learns from, and what its target answers to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dovetail
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.errors import ContextExceeded, InvalidRequest
from dovetail.grammar.matcher import compile

#: So many requests are answered between two writes.
_AT_ONCE = 64


class Answered(NamedTuple):
    """Token ids of a prompt and of its answer. Both are empty if the prompt was too long."""

    prompt: list[int]
    answer: list[int]


class Chat:
    """A checkpoint that answers chat requests as the gateway would have them answered. `close` ends it."""

    def __init__(self, checkpoint: Path, drafter: Path | None, settings: EngineSettings) -> None:
        self.tokenizer = dovetail.tokenizer(checkpoint)
        self._format = dovetail.format(checkpoint)
        self._core = LLMCore.load(checkpoint, drafter, self.tokenizer, settings)
        self.close = self._core.close

    def completion(self, request: dict[str, Any], sampling: Sampling) -> Completion:
        """The request's prompt and constraint. Assistant turns at its end are left out: the target answers there.

        Raises `ContextExceeded` if the prompt fills the context, and other errors of a request.
        """
        messages = list(request["messages"])
        while messages and messages[-1].get("role") == "assistant":
            messages.pop()
        if not messages:
            raise InvalidRequest("a conversation has no turn to answer")
        options = {name: request[name] for name in ("tool_choice", "response_format") if name in request}
        turn = self._format.turn(messages, request.get("tools"), **options)
        prompt, room = turn.prompt.ids(self.tokenizer), self._core.info.context
        if len(prompt) >= room:
            raise ContextExceeded(f"a prompt has {len(prompt)} tokens, and the context is {room}")
        grammar = turn.grammar(strict="schema")
        constraint = compile(grammar, self.tokenizer, self._core.info.eos_ids) if grammar else None
        return Completion(tuple(prompt), room - len(prompt), sampling, constraint=constraint)

    def run(self, completions: Sequence[Completion]) -> list[list[TokenBatch]]:
        """Each completion's steps, in order. Raises what ends one early."""
        steps: list[list[TokenBatch]] = [[] for _ in completions]
        for number, each in enumerate(completions):
            self._core.add(str(number), each)
        while self._core.live:
            for name, outcome in self._core.step():
                if not isinstance(outcome, TokenBatch):
                    raise outcome
                steps[int(name)].append(outcome)
        return steps


def answer(
    checkpoint: Path,
    requests: Sequence[dict[str, Any]],
    file: Path,
    *,
    longest: int,
    temperature: float,
    progress: Callable[[int], None],
) -> list[Answered]:
    """Let the target answer the requests that `file` has no answer to, and write each there.

    `longest`: the most tokens of a prompt and its answer. `progress` gets the number of requests that are answered.
    """
    done = [Answered(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    progress(len(done))
    if len(done) >= len(requests):
        return done
    chat = Chat(checkpoint, None, EngineSettings(draft_tokens=0, context=longest))
    try:
        while len(done) < len(requests):
            done += _some(chat, requests[len(done) :][:_AT_ONCE], len(done), temperature)
            written = file.with_suffix(".new")
            written.write_text("".join(json.dumps(each) + "\n" for each in done))
            os.replace(written, file)
            progress(len(done))
    finally:
        chat.close()
    return done


def _some(chat: Chat, requests: Sequence[dict[str, Any]], first: int, temperature: float) -> list[Answered]:
    made: dict[int, Completion] = {}
    for number, request in enumerate(requests):
        try:
            made[number] = chat.completion(request, Sampling(temperature=temperature, seed=first + number))
        except ContextExceeded:
            continue
    steps = dict(zip(made, chat.run([*made.values()]), strict=True))
    ids = {number: [token for step in each for token in step.ids] for number, each in steps.items()}
    return [Answered([*made[i].prompt], ids[i]) if i in made else Answered([], []) for i in range(len(requests))]
