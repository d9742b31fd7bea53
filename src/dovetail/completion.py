"""The contract between a front end and an engine: a `Completion` goes in, `TokenBatch`es come out.

An engine works on token ids and never sees messages, tools or formats. A `Constraint` (or the same rules as a
`Grammar`) tells it which tokens may come next; stop strings are the only text that it receives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from dovetail.grammar import Grammar


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. The fields apply in this order:

    `repetition_penalty`: divides the positive and multiplies the negative logits of tokens that the prompt or the
    output contains; 1 changes nothing.
    `frequency_penalty`: subtracted from a token's logit once for each time the output contains that token.
    `presence_penalty`: subtracted once if the output contains the token.
    `logit_bias`: added to the logits of these tokens, from -100 to 100 each.
    `temperature`: divides the logits; 0 is greedy, which takes the likeliest allowed token.
    `min_p`: drops tokens less likely than `min_p` times the likeliest; 0 drops none.
    `top_k`: keeps the `top_k` likeliest tokens; None keeps all.
    `top_p`: keeps the likeliest tokens whose probabilities add up to `top_p`; 1 keeps all.
    `seed`: the same seed, prompt and engine give the same tokens, unless the load of other requests changes how many
    tokens are drafted. The distribution never changes.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = {}


class Constraint(Protocol):
    """Decides which tokens may come next in one sequence.

    It speaks the engine's vocabulary. An engine may call it from two threads, but never from both at once.
    """

    def fill(self, row: memoryview) -> None:
        """Write the bit mask of allowed tokens into `row`: bit ``i % 32`` of the 32-bit word ``i // 32`` is token i.

        `row` is writable, contiguous and ``4 * ceil(vocab / 32)`` bytes long.
        """

    def advance(self, token: int) -> bool:
        """Accept `token` as the next one. False, without a change of state, when it is not allowed."""

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""

    def forced(self, limit: int) -> Sequence[int]:
        """At most `limit` tokens that spell the only text that may come next; empty when several texts may.

        The state does not change. An engine may use the tokens as drafts, and verifies them like any others: the same
        text may be spelled by other tokens.
        """


@runtime_checkable
class GuardedConstraint(Constraint, Protocol):
    """A `Constraint` with a guard, which refuses tokens that the constraint would allow without it.

    The engine draws from what may come without the guard, and draws once more, with the guard, only if that token is
    refused. So the guard changes no answer that it does not have to change, and the engine can say that it did.
    """

    def fill_unguarded(self, row: memoryview) -> bool:
        """Write what may come without the guard into `row`, as `fill` does. False: the guard refuses nothing here, and
        `row` may be as it was."""


class Picture(msgspec.Struct, frozen=True):
    """A picture that a prompt has.

    `data`: the bytes of its file, of the type `media_type` (`image/png`). `sha256`: their digest, in hexadecimal.
    `name`: the words by which an error about it begins.
    """

    data: bytes
    media_type: str
    sha256: str
    name: str = ""

    @property
    def url(self) -> str:
        """The file as a data: URL."""
        return f"data:{self.media_type};base64,{msgspec.json.encode(self.data)[1:-1].decode()}"

    def __repr__(self) -> str:
        return f"Picture({self.media_type}, {len(self.data)} bytes, {self.sha256[:12]})"


class Completion(msgspec.Struct, frozen=True):
    """One prompt to continue.

    `prompt`: the token ids to continue.
    `pictures`: one for each token `picture_token` of the prompt, in order. Only for an engine whose
    `EngineInfo.pictures` is true.
    `max_tokens`: the most new tokens.
    `stop`: strings that end the output as soon as the last character of one is decoded. An engine behind HTTP ignores
    them: its caller sees the text and closes the stream.
    `stop_token_ids`: tokens that end the output, as `EngineInfo.eos_ids` do. The last batch contains them. An
    engine behind HTTP may ignore them: its caller sees the ids and closes the stream.
    `ignore_eos`: the tokens of `EngineInfo.eos_ids` are not chosen.
    `min_tokens`: new tokens before which no token that ends the output is chosen. Stop strings may come before.
    With a constraint, `ignore_eos` and `min_tokens` hold as long as the constraint allows a token that does not end the
    output. Where it allows none, the output ends.
    `logprobs`: None for no log probabilities; n for the log probability of each new token and of the n likeliest
    tokens at its position.
    `prompt_logprobs`: the same for each token of the prompt after the first. Only for an engine whose
    `EngineInfo.prompt_logprobs` is true.
    `constraint`, `grammar`: the same rules as a matcher and as data. An engine enforces the one that
    `EngineInfo.enforces` names.
    `grammar_required`: whether an engine that cannot enforce the grammar refuses the completion. Otherwise it goes on
    without.
    `reasoning_budget`: the most tokens of reasoning after its last opening marker, which may be in the prompt; then the
    engine ends the reasoning. None for any number. Only for an engine whose `EngineInfo.bounds_reasoning` is true.
    `draft_tokens`: the most tokens to draft in a step; None for the engine's own setting. An engine behind HTTP
    ignores it, which changes the speed and never the text.
    `gated`: whether the engine's gate chooses how many tokens to draft. Otherwise each step drafts `draft_tokens`, or
    the drafter's own number. An engine behind HTTP ignores it.
    `kind`: what the answer has in common with others whose drafts are accepted about as often, for the gate. Only a few
    values may be in use. An engine behind HTTP ignores it.
    `report_drafts`: whether batches have the ids of draft tokens. An engine behind HTTP ignores it.
    `ends_loops`: whether an engine that can ends an answer that repeats itself, with the finish reason "length".
    `cache_salt`: only completions with the same one share the prompts that an engine has cached, None among them. An
    engine whose `EngineInfo.salts_cache` is false ignores it.
    `session`: what the requests of one conversation have in common, in printable ASCII. An engine with several servers
    sends them to the same one, and an engine behind HTTP passes it on, as `X-Session-ID`. "" if it is not known.
    `priority`: requests with a lower number go first. Only for an engine whose `EngineInfo.priorities` is true.
    `adapter`: the name of the LoRA adapter that answers; "" for the model itself. Only for an engine whose
    `EngineInfo.adapters` is true.
    `request_id`: the request's name in logs and records.
    `trace_context`: the headers `traceparent` and `tracestate` (https://www.w3.org/TR/trace-context/), which an engine
    behind HTTP sends with its request.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    grammar: Grammar | None = None
    grammar_required: bool = True
    reasoning_budget: int | None = None
    draft_tokens: int | None = None
    gated: bool = True
    kind: str = ""
    report_drafts: bool = False
    ends_loops: bool = False
    cache_salt: str | None = None
    request_id: str = ""
    trace_context: Mapping[str, str] = {}
    pictures: tuple[Picture, ...] = ()
    picture_token: int | None = None
    session: str = ""
    priority: int = 0
    adapter: str = ""

    @property
    def seen(self) -> Sequence[Hashable]:
        """The prompt with the digest of each picture in its place: equal if the model sees the same."""
        if not self.pictures:
            return self.prompt
        digests = iter([picture.sha256 for picture in self.pictures])
        return tuple(next(digests, token) if token == self.picture_token else token for token in self.prompt)


Finish = Literal["stop", "length"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The model's own log probability of one token, before penalties, temperature, cuts and constraint.

    `token`: the token id.
    `logprob`: its natural logarithm.
    `top`: the likeliest tokens at this position with their log probabilities, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenBatch(msgspec.Struct, frozen=True):
    """What one engine step added to one sequence. Over HTTP, one batch may cover several steps.

    `ids`: the new tokens in order, with the end-of-turn token if the model wrote one.
    `finish`: set on the last batch only: "stop" (end-of-turn token or stop string) or "length".
    `drafted`: how many draft tokens were proposed, with those that the constraint rejected; 0 without drafting.
    `accepted`: how many of `drafted` the target accepted.
    `forced`: how many of `drafted` came from the constraint and not from the drafter.
    `cached`: how many prompt tokens were in the engine's cache, reported on one batch, the first or the last.
    `logprobs`: one entry for each of `ids` if the completion asked for them.
    `prompt_logprobs`: on the first batch, one entry for each token of the prompt after the first, if asked for.
    `drafts`: the `drafted` tokens in order, if the completion asks for them. The first `accepted` of them are the first
    of `ids`. None if they are not asked for, or not known.

    `prompt_tokens`: on the first batch, how many tokens the prompt has with its pictures, if it has any.
    `guarded`: how often the end of the turn was refused because nothing had been said.

    An engine behind HTTP reports `drafted` and `cached` on the last batch; both are None before it. `drafted` stays
    None if that engine drafts without reporting how much. Such an engine never reports `forced`.
    """

    ids: tuple[int, ...]
    finish: Finish | None = None
    drafted: int | None = 0
    accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    cached: int | None = 0
    forced: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    drafts: tuple[int, ...] | None = None
    guarded: int = 0
    prompt_tokens: int | None = None


class EngineInfo(msgspec.Struct, frozen=True):
    """What a front end has to know about an engine.

    `context`: the most tokens of a prompt and its output together.
    `vocab_size`: the number of token ids, which is the width of a constraint's mask.
    `eos_ids`: the tokens that end a turn.
    `draft_tokens`: the most tokens that the engine drafts in a step; 0 also when an engine behind HTTP does not say.
    `enforces`: what the engine enforces of a completion: its `constraint`, its `grammar` in one of three
    notations, or nothing.
    `prompt_logprobs`: whether the engine reports the log probabilities of a prompt's tokens.
    `bounds_reasoning`: whether the engine keeps to a completion's `reasoning_budget`.
    `reports_steps`: whether each batch is one step. Over HTTP, one batch may cover several.
    `salts_cache`: whether the engine keeps cached prompts with different salts apart.
    `pictures`: whether the engine takes prompts with pictures.
    `priorities`: whether a completion may have a `priority`.
    `adapters`: whether a completion may have an `adapter`.
    """

    context: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    draft_tokens: int
    enforces: Literal["constraint", "lark", "structural_tag", "gbnf", "nothing"] = "constraint"
    prompt_logprobs: bool = False
    bounds_reasoning: bool = False
    reports_steps: bool = False
    salts_cache: bool = False
    pictures: bool = False
    priorities: bool = False
    adapters: bool = False


class MetricSample(NamedTuple):
    """One number for `/metrics`, as in ``accepted_per_position_total{position="0",drafter="eagle3"} 7``.

    Characters that Prometheus does not allow in a name are replaced.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def total(samples: Iterable[MetricSample], name: str) -> float:
    """The sum of the samples with this name; 0 if there are none."""
    return sum(sample.value for sample in samples if sample.name == name)


@runtime_checkable
class Engine(Protocol):
    """Anything that continues token ids: the embedded engine, vLLM, or a server behind a URL."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Load the model. Raises `CheckpointError` or `EngineError` with a message for the operator."""

    async def stop(self) -> None:
        """End all running sequences and free everything."""

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        """Stream the continuation of one prompt.

        Closing the iterator, or cancelling its task, frees the sequence before the engine's next step. Raises
        `EngineBusy` when the queue is full and `EngineError` when the engine fails.
        """

    def gauges(self) -> Sequence[MetricSample]:
        """Numbers for `/metrics`: running, waiting, free_blocks, total_blocks, …

        `up` is 0 while the engine cannot complete anything, and `/health` reports that; an engine without `up` is
        always up. A name that ends in `_total` counts from the engine's start.
        """
