"""vLLM's dialect: POST /v1/completions with prompt ids (0.11 and later, for `return_token_ids`).

A grammar goes as a structural tag; to a vLLM that was started with its guidance backend, which takes no tag of ours, as
llguidance's Lark. Which of the two it takes is asked whenever it is found well.

What vLLM cannot be asked over HTTP is left out: `draft_tokens` of one request. What was drafted for one request it says
where it was started with --per-request-spec-decode-metrics summary, and what of the prompt was in its cache with
--enable-prompt-tokens-details. Log probabilities are the model's own, as long as --logprobs-mode is as it comes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

import msgspec

from dovetail.backends.remote import guidance
from dovetail.backends.remote.counters import Counted, Table, translated
from dovetail.backends.remote.dialect import FINISHES, Count, Drafts, Limits, Models, Page, read, structural_tag
from dovetail.backends.remote.errors import ErrorBody, ServerLost, refusal, words
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError
from dovetail.grammar.grammar import Writer

_ID = "token_id:"
_DIGITS = 10  # of an id, at most
#: An id beyond every vocabulary. vLLM looks at the grammar first, and so says what it thinks of that, and no more.
_NO_TOKEN = 2**31 - 1
#: HTTP status codes that are for a while only, the others of a page that it is known to have.
_BUSY, _FAILED = (408, 429, 503), range(500, 600)
_TAG = '{"type": "structural_tag", "format": {"type": "any_text"}}'
_LARK = "start: /(.|\\n)*/\n"


class VLLM:
    name: ClassVar[str] = "vLLM"
    path: ClassVar[str] = "/v1/completions"
    keeps: ClassVar[bool] = True
    table: ClassVar[Table] = {
        "running": Counted("vllm:num_requests_running"),
        "waiting": Counted("vllm:num_requests_waiting"),
        "kv_cache_usage": Counted("vllm:kv_cache_usage_perc", mean=True),
        "preemptions_total": Counted("vllm:num_preemptions_total"),
        "prompt_tokens_total": Counted("vllm:prompt_tokens_total"),
        "prompt_tokens_cached_total": Counted("vllm:prefix_cache_hits_total"),
        "steps_total": Counted("vllm:iteration_tokens_total_count"),
        "drafts_total": Counted("vllm:spec_decode_num_drafts_total"),
        "drafted_total": Counted("vllm:spec_decode_num_draft_tokens_total"),
        "accepted_total": Counted("vllm:spec_decode_num_accepted_tokens_total"),
        "accepted_per_position_total": Counted("vllm:spec_decode_num_accepted_tokens_per_pos_total", by="position"),
    }

    async def limits(self, server: str, page: Page) -> Limits:
        models: Models = await read(server, page, "/v1/models", Models)
        # Adapters are listed too, each with the model that it adapts.
        own = next((model for model in models.data if model.parent is None), None)
        if own is None or own.max_model_len is None:
            raise EngineError(f"{server} lists no model with its max_model_len")
        no_grammar, grammar = await _grammar(server, self.path, own.id, page)
        return Limits(own.id, own.max_model_len, await self._draft_tokens(page), no_grammar, grammar)

    async def _draft_tokens(self, page: Page) -> int | None:
        """None where its metrics cannot be read."""
        try:
            status, metrics = await page("/metrics")
        except EngineError:
            return None
        if status != 200:
            return None
        # There is a series for every place from the start.
        return sum(name.startswith("accepted_per_position_total") for name in translated(metrics, self.table))

    def body(
        self, completion: Completion, vocabulary: Vocabulary, limits: Limits, request_id: str
    ) -> Mapping[str, object]:
        sampling = completion.sampling
        body: dict[str, object] = {
            "model": limits.model,
            "prompt": completion.prompt,
            "max_tokens": completion.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "request_id": request_id,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": vocabulary.eos_ids,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if completion.logprobs is not None:
            body |= {"logprobs": completion.logprobs, "return_tokens_as_token_ids": True}
        if completion.grammar is not None:
            if limits.grammar == "lark":
                held = {"grammar": guidance.write(completion.grammar, vocabulary)}
            else:
                held = {"structural_tag": structural_tag(completion.grammar, vocabulary)}
            body["structured_outputs"] = held
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> VLLMReader:
        return VLLMReader(completion, server)


async def _grammar(server: str, path: str, model: str, page: Page) -> tuple[str | None, Writer]:
    """Why it takes no grammar, None where it does, and what it takes one as. Raises `ServerLost` where it has no time
    to say.

    It is never asked to use one: with its backend on auto the first grammar decides which library it is for good.
    """

    async def asked(path: str, passing: Container[int], **body: object) -> tuple[int, bytes]:
        status, said = await page(path, {"model": model, **body})
        if status in passing:
            why = f"{server} cannot say now what it takes a grammar as: HTTP status {status}: {words(said)}"
            raise ServerLost(why)
        return status, said

    async def said(**outputs: str) -> str | None:
        """Why it refuses this, None where it does not."""
        held = {"structured_outputs": outputs} if outputs else {}
        status, body = await asked(path, (*_BUSY, *_FAILED), prompt=[_NO_TOKEN], max_tokens=1, **held)
        return words(body) if status == 400 else None

    # Without a tokenizer (--skip-tokenizer-init) 0.32 does not look at ids, and computes what there is no row for.
    if (await asked("/tokenize", _BUSY, prompt="a"))[0] != 200:
        return None, "structural_tag"
    otherwise = await said()
    if await said(structural_tag=_TAG) in (None, otherwise):
        return None, "structural_tag"
    why = await said(grammar=_LARK)
    if why in (None, otherwise):
        return None, "lark"
    return f"{why.rstrip('.')} (--grammar-backend xgrammar)", "lark"


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: _PromptDetails | None = None


class _Speculation(msgspec.Struct, frozen=True):
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count


class _Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Speculation | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: ErrorBody | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class VLLMReader:
    def __init__(self, completion: Completion, server: str) -> None:
        self._server, self._likeliest = server, completion.logprobs
        self.cached = 0
        self.drafts: Drafts | None = None

    async def feed(self, data: bytes) -> TokenBatch | None:
        chunk = _CHUNK.decode(data)
        if chunk.error is not None:
            code = chunk.error.code
            raise refusal(self._server, code if isinstance(code, int) else 500, data)
        if chunk.choices:
            return self._choice(chunk.choices[0])
        # The last event is about the whole answer.
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            self.cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
        if chunk.metrics is not None and (said := chunk.metrics.speculative_decoding) is not None:
            self.drafts = Drafts(said.num_draft_tokens, said.num_accepted_draft_tokens)
        return None

    def _choice(self, choice: _Choice) -> TokenBatch | None:
        if choice.token_ids is None:
            raise EngineError(f"{self._server} sends no token ids: vLLM does since 0.11")
        ids = tuple(choice.token_ids)
        logprobs = _logprobs(ids, choice.logprobs, self._likeliest) if self._likeliest is not None else ()
        finish = None if choice.finish_reason is None else _finish(self._server, choice.finish_reason)
        return TokenBatch(ids, finish, logprobs=logprobs) if ids or finish else None


def _finish(server: str, reason: str) -> Finish:
    if (finish := FINISHES.get(reason)) is not None:
        return finish
    raise EngineError(f"{server} ended the answer: {reason!r:.80}")


def _logprobs(ids: tuple[int, ...], said: _Logprobs | None, likeliest: int) -> tuple[TokenLogprob, ...]:
    """vLLM lists the token itself first, then the likeliest, by rank; the token is not twice in it."""
    if said is None or not len(said.tokens) == len(said.token_logprobs) == len(said.top_logprobs) == len(ids):
        raise msgspec.ValidationError("log probabilities that are not those of the tokens")
    found = []
    for token, name, own, top in zip(ids, said.tokens, said.token_logprobs, said.top_logprobs, strict=True):
        if own is None or _token(name) != token:
            raise msgspec.ValidationError("log probabilities that are not those of the tokens")
        ranked = sorted((top or {}).items(), key=lambda each: -each[1])[:likeliest]
        found.append(TokenLogprob(token, own, tuple((_token(each), logprob) for each, logprob in ranked)))
    return tuple(found)


def _token(name: str) -> int:
    said = name.removeprefix(_ID)
    if said == name or len(said) > _DIGITS or not said.isdecimal():
        raise msgspec.ValidationError(f"log probabilities with tokens that are no ids: {name!r:.40}")
    return int(said)
