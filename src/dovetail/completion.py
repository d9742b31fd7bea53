"""The contract between those who want tokens and those who make them: `Completion` in, `TokenBatch` out.

An engine speaks token ids and nothing else. It never sees a message, a tool or a format: a `Constraint` tells it which
tokens may come next, or the same as a `Grammar`, and stop strings are the only text it is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from dovetail.grammar import Grammar


class Sampling(msgspec.Struct, frozen=True):
    """How to choose among the tokens that may come next.

    In this order: the penalties change logits, then `temperature` divides them (0 is greedy: the likeliest that is
    left), then `min_p`, `top_k` and `top_p` cut. `min_p` cuts what is less likely than that share of the likeliest;
    0, None and 1.0 cut nothing. `repetition_penalty` divides the positive and multiplies the negative logits of tokens
    in prompt or output (1: as they are); `frequency_penalty` is subtracted for each time a token is in the output,
    `presence_penalty` once. The same `seed` gives the same tokens for the same prompt on the same engine, unless
    others' load changes how much is drafted for it; the distribution is the same always.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


class Constraint(Protocol):
    """What may come next, in the engine's own vocabulary. A matcher for one sequence; not shared, not thread-safe: an
    engine may call it from two threads, never at once."""

    def fill(self, row: memoryview) -> None:
        """Write the bit mask of allowed tokens into `row`: bit ``i % 32`` of the 32-bit word ``i // 32`` is token i.

        `row` is writable, contiguous and ``4 * ceil(vocab / 32)`` bytes long.
        """

    def advance(self, token: int) -> bool:
        """Take `token`; False (and no change of state) when it is not allowed here."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens taken."""

    def forced(self, limit: int) -> Sequence[int]:
        """At most `limit` tokens that spell what must come next, if one text must; an engine may draft them. The same
        text may have other spellings, so they are a guess, and the state is as it was."""


class Completion(msgspec.Struct, frozen=True):
    """One prompt to continue.

    `max_tokens` bounds the new tokens. `stop` are strings that end the output where their last character is decoded; an
    engine behind HTTP leaves them to its caller, who has the text and closes the stream there.
    `logprobs` asks for each new token's log probability, and for that many of the likeliest at its place (0: none).
    `grammar` is what `constraint` enforces, as data, for an engine that brings a grammar library of its own; an engine
    heeds one of the two. `draft_tokens` caps how many tokens are drafted a step for this request (0: none; None: as the
    engine is set up); an engine behind HTTP cannot be told so, and drafts as it does: that changes speed, never text.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    constraint: Constraint | None = None
    grammar: Grammar | None = None
    draft_tokens: int | None = None
    request_id: str = ""


Finish = Literal["stop", "length"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """What the model itself made of a token: natural logarithms, before penalties, temperature, cuts and constraint.

    `top` are the likeliest tokens of its place with theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenBatch(msgspec.Struct, frozen=True):
    """What one engine step added to one sequence; over HTTP, where several may come in one piece, at least one step.

    `ids` are the new tokens, in order; an end-of-turn token is the last of them when it was generated.
    `finish` is set on the last batch: "stop" (end token or stop string) or "length".
    `drafted` counts the draft tokens proposed for this step, those that the constraint then cut off included, and
    `accepted` those of them that stood (0 of both in a step without drafting); `forced` of those proposed are what the
    constraint forced, and no drafter's merit. `cached` says on one batch, the first or the last, how many of the
    prompt's tokens were found in the engine's cache. An engine behind HTTP tells `drafted` and `cached` with the last
    batch: until then both are None, and `drafted` there too where it drafts and does not say what; of `forced` it says
    nothing. `logprobs` has one entry for each of `ids` where the completion asked for them.
    """

    ids: tuple[int, ...]
    finish: Finish | None = None
    drafted: int | None = 0
    accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    cached: int | None = 0
    forced: int = 0


class EngineInfo(msgspec.Struct, frozen=True):
    """What a front end must know of an engine: limits in tokens, the vocabulary's size and the ids that end a turn.

    `draft_tokens` is the most that it drafts a step, 0 also for an engine behind HTTP that does not say so. `heeds` is
    what it enforces of a completion: its `constraint`, or its `grammar` as one of its writers writes it.
    """

    context: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    draft_tokens: int
    heeds: Literal["constraint", "lark", "structural_tag"] = "constraint"


@runtime_checkable
class Engine(Protocol):
    """Anything that continues token ids: embedded, vLLM, remote."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Load and get ready; raises `CheckpointError` or `EngineError` with one message for the operator."""

    async def stop(self) -> None:
        """End running sequences and free everything."""

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        """Stream the continuation. Closing the iterator (or cancelling its task) frees the sequence before the
        engine's next step.

        Raises `EngineBusy` when there is no room to queue and `EngineError` when the engine fails.
        """

    def gauges(self) -> dict[str, float]:
        """Numbers for `/metrics`, by name: running, waiting, free_blocks, total_blocks, …

        `up` is 0 while the engine cannot complete anything, which `/health` then says too; without it it always can.
        A name that ends in `_total` counts from start. Labels may follow it in Prometheus' notation, as in
        ``accepted_per_position_total{position="0",drafter="eagle3",context="1024"}``; one that cannot be read so is
        shown as a name as far as its characters allow.
        """
