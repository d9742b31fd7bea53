"""`POST /v1/completions`: turns with raw prompts, and their steps as OpenAI's JSON.

A whole choice is the sum of the pieces that a stream sends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.errors import DovetailError
from dovetail.events import Content
from dovetail.gateway.apis.completion_request import CompletionRequest, decode, turn_request
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.apis.totals import ChoiceTotals, Extension, PromptTokensDetails, Speculation, speculation
from dovetail.gateway.http.errors import error_json
from dovetail.gateway.http.response import COMMENT, DONE, event
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.turn.logprobs import ContentLogprob, TopLogprob
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.raw_prompt import prompt_text
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.tokens import Detokenizer, Tokenizer


class RawCompletion:
    """One request for completions, with one or several prompts.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes, _: Account | None = None) -> None:
        self._request = decode(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, CompletionRequest))

    @property
    def concludes(self) -> bool:
        """A completion has no record and is not stored."""
        return False

    def conclude(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Nothing."""

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        return whole(self._request, turn, steps)

    def stream(self, turn: PreparedTurn) -> Stream:
        return Stream(self._request, turn)


class Logprobs(msgspec.Struct, frozen=True):
    """Columns with an entry for each token. The first token of an echoed prompt has no log probability.

    A token that is not whole characters is spelled as in ``bytes:\\xe2\\x80``, so that no two tokens look alike.
    `text_offset` is where a token begins in the text, in characters.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    dovetail: Extension | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # Absent if the engine did not report it.
    prompt_tokens_details: PromptTokensDetails | UnsetType
    speculation: Speculation | UnsetType


class Response(msgspec.Struct, frozen=True):
    """A completion, or one chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET


class _Offsets:
    """Where tokens begin in the text that they spell."""

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._length = start

    def take(self, tokens: Iterable[int]) -> tuple[int, ...]:
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            self._length += sum(len(segment.text) for segment in self._detokenizer.feed((token,)))
        return tuple(offsets)


class _Pieces:
    """The pieces of one choice, which add up to it."""

    def __init__(self, request: CompletionRequest, turn: PreparedTurn, index: int) -> None:
        self._index = index
        self._echoes_only = request.echoes_only
        self._scored = turn.request.prompt_logprobs is not None
        self._tokenizer = turn.tokenizer
        self._raw = turn.request.prompts[index // turn.request.choices]
        self._prompt = turn.choices[index].completion.prompt
        #: The prompt, until it is echoed.
        self._to_echo = prompt_text(self._raw, self._tokenizer) if request.echo else ""
        self._offsets = _Offsets(self._tokenizer, len(self._to_echo))
        self.totals = ChoiceTotals(turn, index)

    def piece(self, step: Step) -> CompletionChoice:
        """What `step` adds. The first piece has the prompt, if it is to be echoed."""
        columns = self._prompt_columns(step) if self._scored and not self.totals.steps else None
        text, self._to_echo = self._to_echo, ""
        if self._echoes_only:
            step = msgspec.structs.replace(step, ids=(), events=[], logprobs=(), finish=step.finish and "length")
        text += "".join(event.text for event in step.events if isinstance(event, Content))
        if step.logprobs:
            own = _columns(step.logprobs, self._offsets.take(step.ids))
            columns = own if columns is None else _joined((columns, own))
        self.totals.add(step)
        if step.finish is None:
            return CompletionChoice(self._index, text, columns)
        finish: Literal["stop", "length"] = "length" if step.finish == "length" else "stop"
        return CompletionChoice(self._index, text, columns, finish, self.totals.extension())

    def _prompt_columns(self, step: Step) -> Logprobs:
        text = self._to_echo
        begin = len(self._tokenizer.text_prefix) if isinstance(self._raw.content, str) and self._raw.prefix else 0
        offsets = (*(0 for _ in range(begin)), *_Offsets(self._tokenizer).take(self._prompt[begin:]))
        first = Logprobs((_spelled(self._tokenizer.token_bytes(self._prompt[0])),), (None,), (None,), (0,))
        return _joined((first, _columns(step.prompt_logprobs, [min(offset, len(text)) for offset in offsets[1:]])))


def whole(request: CompletionRequest, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
    """The response to a request that does not stream."""
    choices = [_Pieces(request, turn, index) for index in range(len(turn.choices))]
    parts: list[list[CompletionChoice]] = [[] for _ in choices]
    for step in steps:
        parts[step.choice].append(choices[step.choice].piece(step))
    usage = _usage(turn, [choice.totals for choice in choices])
    return _response(turn, request.model, tuple(map(_sum, parts)), usage)


class Stream:
    """The response to a request that streams, as server-sent events."""

    ping = COMMENT

    def __init__(self, request: CompletionRequest, turn: PreparedTurn) -> None:
        self._turn = turn
        self._model = request.model
        self._choices = [_Pieces(request, turn, index) for index in range(len(turn.choices))]
        options = request.stream_options
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._include_usage = self._continuous_usage or bool(options and options.include_usage)

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(choice.totals.finish is not None for choice in self._choices)

    def start(self) -> bytes:
        return b""

    def step(self, step: Step) -> bytes:
        """The chunk of one step: b"" for a step that shows nothing yet. The last step's ends with [DONE]."""
        piece = self._choices[step.choice].piece(step)
        shows = piece.text or piece.logprobs is not None or piece.finish_reason is not None
        chunks = [self._chunk((piece,), counts=self._continuous_usage)] if shows else []
        if self.done:
            chunks += [*([self._chunk((), counts=True)] if self._include_usage else []), DONE]
        return b"".join(chunks)

    def error(self, error: DovetailError) -> bytes:
        """The event that ends a stream in which something failed."""
        return event(error_json(error))

    def _chunk(self, choices: tuple[CompletionChoice, ...], *, counts: bool) -> bytes:
        usage = _usage(self._turn, [choice.totals for choice in self._choices]) if counts else None
        # With include_usage every chunk has the field, as in OpenAI's API.
        shown = usage if self._include_usage else UNSET
        return event(_response(self._turn, self._model, choices, shown))


def _response(
    turn: PreparedTurn,
    model: str,
    choices: tuple[CompletionChoice, ...],
    usage: Usage | UnsetType | None,
) -> bytes:
    return msgspec.json.encode(Response(turn.id, "text_completion", turn.created, model, choices, usage))


def _sum(pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    """The choice that `pieces`, of which there is at least one, add up to."""
    columns = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    text = "".join(piece.text for piece in pieces)
    logprobs = _joined(columns) if columns else None
    return msgspec.structs.replace(pieces[-1], text=text, logprobs=logprobs)


def _joined(parts: Sequence[Logprobs]) -> Logprobs:
    """The entries of all `parts`."""
    columns = zip(*map(msgspec.structs.astuple, parts), strict=True)
    return Logprobs(*(tuple(itertools.chain.from_iterable(column)) for column in columns))


def _usage(turn: PreparedTurn, choices: Sequence[ChoiceTotals]) -> Usage:
    """The counts of all `choices`. Each prompt counts once, with the cached tokens that its first choice reports."""
    prompt, new = turn.prompt_tokens, sum(len(choice.ids) for choice in choices)
    cached = [choice.cached for choice in choices[:: turn.request.choices]]
    known = [count for count in cached if count is not None]
    details = PromptTokensDetails(sum(known)) if len(known) == len(cached) else UNSET
    return Usage(prompt, new, prompt + new, details, speculation(choices))


def _columns(entries: Sequence[ContentLogprob], offsets: Sequence[int]) -> Logprobs:
    likeliest = tuple({_name(top): top.logprob for top in entry.top_logprobs} for entry in entries)
    for top, entry in zip(likeliest, entries, strict=True):
        top.setdefault(_name(entry), entry.logprob)  # the token itself is there, as in OpenAI's API
    tokens, own = tuple(map(_name, entries)), tuple(entry.logprob for entry in entries)
    return Logprobs(tokens, own, likeliest, tuple(offsets))


def _name(entry: TopLogprob) -> str:
    return _spelled(bytes(entry.bytes or ()))


def _spelled(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
