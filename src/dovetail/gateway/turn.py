"""One turn: render -> complete -> parse, as a stream of `Step`s, the same for every API.

`TurnRunner.prepare` makes a `Turn` of a request; it computes for milliseconds, so it is called outside the event loop.
`TurnRunner.steps` runs the turn: each choice is a sequence of its own in the engine, and steps come as they are made. A
whole response is the fold of the same steps that a stream sends, so the two cannot disagree.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, cast

import msgspec

from dovetail.completion import Completion, Engine, Sampling, TokenBatch
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.formats.base import Format
from dovetail.formats.history import Repair
from dovetail.gateway.answer_grammar import answer_grammar, check_can_follow
from dovetail.gateway.logprobs import Speller
from dovetail.gateway.output import OutputReader, Step
from dovetail.gateway.prompt import render_prompt
from dovetail.gateway.retries import with_retries
from dovetail.gateway.settings import Settings
from dovetail.gateway.streams import merge
from dovetail.gateway.tools import DeclaredTools
from dovetail.gateway.turn_request import TurnRequest
from dovetail.gateway.validation import AnswerSchemas, AnswerValidator, answer_schemas
from dovetail.grammar import FreeText, Grammar, matcher
from dovetail.grammar.grammar import Writer
from dovetail.grammar.matcher import Matcher
from dovetail.reading import Reader
from dovetail.tokens import Detokenizer, Prompt, Tokenizer


class Attempt(NamedTuple):
    """What one attempt at a choice needs: the completion for the engine, and a reader for its output."""

    completion: Completion
    reader: Reader


class Attempts(msgspec.Struct, frozen=True):
    """Makes the attempts of one turn. Every attempt has its own request id, seed, matcher and reader."""

    request: TurnRequest
    prompt: tuple[int, ...]
    max_tokens: int
    grammar: Grammar | None
    matcher: Matcher | None
    format: Format
    tools: Sequence[dict[str, Any]]
    tokenizer: Tokenizer
    left_open: bool

    def attempt(self, choice: int, retry: int = 0, shown: Sequence[int] = ()) -> Attempt:
        """Attempt number `retry` at `choice`, which continues from `shown`, the tokens that the client has."""
        request = self.request
        name = request.id if choice == 0 else f"{request.id}-{choice}"
        completion = Completion(
            prompt=(*self.prompt, *shown),
            max_tokens=self.max_tokens - len(shown),
            sampling=_with_seed(request.sampling, choice + retry * request.choices),
            stop=request.stop,
            logprobs=request.logprobs,
            constraint=_advanced(self.matcher, shown) if self.matcher else None,
            grammar=None if shown else self.grammar,  # it describes a whole answer
            draft_tokens=request.extension.draft_tokens,
            request_id=f"{name}-retry{retry}" if retry else name,
        )
        reader = self.format.reader(
            self.tools,
            thinking=self.left_open,
            # Without tools, text that looks like a call is not one.
            tool_choice=request.tool_choice if self.tools else "none",
            tokenizer=self.tokenizer,
            call_prefix=f"call_{request.id.rpartition('-')[2][:16]}_{f'{choice}_' if choice else ''}",
            structured=request.structured,
        )
        return Attempt(completion, reader)


class Turn(msgspec.Struct, frozen=True):
    """A request that is ready to run.

    `created` is in seconds since the epoch. `choices` has the first attempt at each choice, and `attempts` makes
    others, at most `retries` for each choice. `unenforced` lists the fields of the request, with JSON pointers into
    their schemas, that no grammar enforces although they were to be enforced.
    """

    created: int
    request: TurnRequest
    repairs: tuple[Repair, ...]
    choices: tuple[Attempt, ...]
    attempts: Attempts
    retries: int
    schemas: AnswerSchemas
    unenforced: tuple[str, ...]

    @property
    def id(self) -> str:
        """The name of the answer."""
        return self.request.id

    @property
    def prompt(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return self.attempts.prompt


class TurnRunner:
    """Runs turns for one model: its format, its tokenizer, and the engine that completes its prompts."""

    def __init__(self, engine: Engine, fmt: Format, tokenizer: Tokenizer, settings: Settings) -> None:
        self._engine = engine
        self._format = fmt
        self._tokenizer = tokenizer
        self._settings = settings
        self._speller = Speller(tokenizer)

    def warm_up(self) -> None:
        """Build the grammar library's view of the vocabulary: about a second for 160,000 tokens."""
        matcher.compile(Grammar(FreeText()), self._tokenizer, self._engine.info.eos_ids)
        _ = self._tokenizer.longest_token

    def prepare(self, request: TurnRequest) -> Turn:
        """Everything before the engine. Takes milliseconds; raises `InvalidRequest` or `RenderError`."""
        try:
            return self._prepare(request)
        except RecursionError as error:
            raise InvalidRequest("messages or tools are nested too deeply") from error

    def _prepare(self, request: TurnRequest) -> Turn:
        declared = DeclaredTools(request, self._format)
        off = request.extension.repairs_off(self._settings.no_repair)
        messages, repairs = self._format.repair(request.messages, request.tools, off=off)
        prompt = render_prompt(request, self._format, messages)
        self._check_length(prompt)
        ids = tuple(prompt.ids(self._tokenizer))
        max_tokens = self._max_tokens(request, len(ids))
        # From the prompt and not from the request: a template may ignore the switch, or an answer may be continued.
        left_open = self._format.left_open(prompt)
        strict = request.extension.strict or self._settings.strict
        with declared.request_fields():
            grammar = answer_grammar(request, self._format, declared.tools, strict=strict, left_open=left_open)
            matcher_ = matcher.compile(grammar, self._tokenizer, self._engine.info.eos_ids) if grammar else None
            schemas = answer_schemas(request, declared.tools)
        if grammar is not None:
            check_can_follow(grammar, request, self._format, left_open)
        attempts = Attempts(
            request, ids, max_tokens, grammar, matcher_, self._format, declared.tools, self._tokenizer, left_open
        )
        return Turn(
            created=int(time.time()),
            request=request,
            repairs=tuple(repairs),
            choices=tuple(attempts.attempt(choice) for choice in range(request.choices)),
            attempts=attempts,
            # A greedy retry would give the same tokens again.
            retries=self._settings.retry_invalid if declared.tools and request.sampling.temperature else 0,
            schemas=schemas,
            unenforced=self._unenforced(grammar, schemas, declared),
        )

    def _unenforced(self, grammar: Grammar | None, schemas: AnswerSchemas, tools: DeclaredTools) -> tuple[str, ...]:
        writer: Writer = "structural_tag" if self._engine.info.enforces == "structural_tag" else "lark"
        places = [origin + pointer for origin, pointer in grammar.unenforced(writer)] if grammar else []
        return tuple(map(tools.field, dict.fromkeys((*places, *schemas.unchecked))))

    def _check_length(self, prompt: Prompt) -> None:
        """Refuse a prompt that cannot fit before it is tokenized, which takes a second for a megabyte."""
        context = self._engine.info.context
        least = len(prompt.text.encode(errors="replace")) // self._tokenizer.longest_token
        if least >= context:
            raise ContextExceeded(
                f"the prompt is at least {least} tokens, which exceeds the context of {context}", param="messages"
            )

    def _max_tokens(self, request: TurnRequest, prompt: int) -> int:
        """How many new tokens the answer may have after a prompt of `prompt` tokens."""
        context = self._engine.info.context
        room = context - prompt
        if room < 1:
            raise ContextExceeded(
                f"the prompt is {prompt} tokens, which leaves no room for an answer in the context of {context}",
                param="messages",
            )
        if request.max_tokens is None:
            return min(room, self._settings.default_max_tokens or room)
        if request.max_tokens > room:
            field = request.max_tokens_field
            raise ContextExceeded(
                f"{field} is {request.max_tokens} and the prompt is {prompt} tokens, which exceeds the context of "
                f"{context}: set {field} to at most {room}, or leave it out",
                param=field,
            )
        return request.max_tokens

    def steps(self, turn: Turn) -> AsyncGenerator[Step]:
        """The answer: the engine's steps, up to the last step of every choice.

        Closing the generator closes the engine's streams, which frees their cache blocks; so does a choice that fails.
        At most one step of each other choice is read ahead. The engine itself may run ahead, up to `max_tokens`.
        """
        # A grammar describes a whole answer, so an engine that takes one cannot continue from a part of an answer.
        buffer_all = self._engine.info.enforces != "constraint"

        def choice(number: int) -> AsyncGenerator[Step]:
            async def new_attempt(retry: int, shown: Sequence[int]) -> _Running:
                # In a thread, because `shown` may be thousands of tokens.
                retried = await asyncio.to_thread(turn.attempts.attempt, number, retry, shown) if retry else None
                running = self._running(turn, number, retried or turn.choices[number], reports_cached=not shown)
                if shown:
                    await running.output.replay(shown)
                return running

            return with_retries(new_attempt, turn.retries, buffer_all=buffer_all)

        choices = [choice(number) for number in range(turn.request.choices)]
        return choices[0] if len(choices) == 1 else merge(choices)

    def _running(self, turn: Turn, choice: int, attempt: Attempt, *, reports_cached: bool) -> _Running:
        output = OutputReader(
            choice,
            attempt.reader,
            Detokenizer(self._tokenizer),
            AnswerValidator(turn.schemas),
            stop=attempt.completion.stop,
            end_ids=self._end_ids,
            speller=None if attempt.completion.logprobs is None else self._speller,
        )
        return _Running(self._engine, attempt.completion, output, reports_cached=reports_cached)

    @functools.cached_property
    def _end_ids(self) -> frozenset[int]:
        control = self._tokenizer.control
        named = (control[literal] for literal in self._format.end_of_turn if literal in control)
        return frozenset((*self._engine.info.eos_ids, *named))


class _Running:
    """An attempt that the engine completes, as `retries.Attempt` has it.

    `reports_cached` is False for a retry after shown tokens: the first attempt has reported how much of the prompt was
    in the cache.
    """

    def __init__(self, engine: Engine, completion: Completion, output: OutputReader, *, reports_cached: bool) -> None:
        self._engine = engine
        self._completion = completion
        self._reports_cached = reports_cached
        self.request_id = completion.request_id
        self.output = output

    @property
    def called(self) -> bool:
        return self.output.called

    @property
    def invalid(self) -> bool:
        return self.output.invalid

    async def steps(self) -> AsyncGenerator[Step]:
        # The protocol promises an iterator that can be closed, which is the part of a generator that `aclosing` needs.
        batches = cast(AsyncGenerator[TokenBatch], self._engine.complete(self._completion))
        async with aclosing(batches):
            async for batch in batches:
                step = await self.output.step(batch)
                yield step if self._reports_cached else msgspec.structs.replace(step, cached=None)
                if step.finish is not None:
                    return
        raise EngineError("the engine's output ended without a finish reason")


def _with_seed(sampling: Sampling, offset: int) -> Sampling:
    """`sampling` with `offset` added to its seed, in 64 bits: choices differ, and can be generated again."""
    if sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + offset + 2**63) % 2**64 - 2**63)


def _advanced(matcher: Matcher, tokens: Iterable[int]) -> Matcher:
    """A copy of `matcher` that has taken `tokens`."""
    copy = matcher.another()
    for token in tokens:
        copy.advance(token)
    return copy
