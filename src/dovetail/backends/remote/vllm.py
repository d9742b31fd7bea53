"""vLLM's dialect: POST /v1/completions with prompt ids (vLLM 0.11 and later, for `return_token_ids`).

Prompts with pictures go to another endpoint (`vllm_pictures`).

A grammar is sent as a structural tag, or as llguidance's Lark if vLLM uses its guidance backend, which does not accept
Dovetail's tags. vLLM is asked which one it accepts each time that it becomes healthy.

A request's `draft_tokens` cannot be sent over HTTP. Draft tokens of one request are reported if vLLM was started with
--per-request-spec-decode-metrics summary, and cached prompt tokens with --enable-prompt-tokens-details. Log
probabilities are the model's own unless --logprobs-mode was set.

A budget of reasoning is sent as `thinking_token_budget`, which vLLM refuses unless it was started with
--reasoning-config or --reasoning-parser. Each time that it becomes healthy, it is asked whether it does.

`ignore_eos` is sent as `min_tokens`, before which vLLM chooses no token that ends an answer. Its own `ignore_eos` goes
on after such a token. With a drafter, vLLM refuses `logit_bias`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

import msgspec

from dovetail.backends.remote import guidance, vllm_pictures
from dovetail.backends.remote.counters import Counted, Table, translated
from dovetail.backends.remote.dialect import (
    FINISHES,
    Count,
    Drafts,
    Limits,
    Models,
    Page,
    least_tokens,
    read,
    stop_token_ids,
    structural_tag,
)
from dovetail.backends.remote.errors import ErrorBody, ServerLost, message_of, redacted, refusal
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError
from dovetail.grammar import Grammar
from dovetail.grammar.grammar import Writer

_ID = "token_id:"
_DIGITS = 10  # the most digits of an id
#: An id beyond every vocabulary. vLLM checks the grammar first, so its error is about the grammar if that is bad.
_NO_TOKEN = 2**31 - 1
_NO_BUDGET = -2  # -1 is no limit
#: vLLM's own end of loops: 64 tokens, 32 times. It compares every size in the range at each token, and takes zeros for
#: a loop like any text, so that only long runs may count. docs/turns.md has what it costs.
_REPETITION = {"min_pattern_size": 64, "max_pattern_size": 64, "min_count": 32}
#: HTTP status codes that may pass: of any page, and of a page that is known to exist.
_BUSY, _FAILED = (408, 429, 503), range(500, 600)
_TAG = '{"type": "structural_tag", "format": {"type": "any_text"}}'
_LARK = "start: /(.|\\n)*/\n"


class VLLM:
    name: ClassVar[str] = "vLLM"
    path: ClassVar[str] = "/v1/completions"
    keeps: ClassVar[bool] = True
    scores_prompts: ClassVar[bool] = True
    delays_ends: ClassVar[bool] = True
    salts_cache: ClassVar[bool] = True
    priorities: ClassVar[bool] = True
    adapters: ClassVar[bool] = True
    rereads: ClassVar[bool] = False
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
        # Adapters are listed too, with the model that they adapt as parent.
        own = next((model for model in models.data if model.parent is None), None)
        if own is None or own.max_model_len is None:
            raise EngineError(f"{server} lists no model with its max_model_len")
        no_grammar, grammar, bounds_reasoning = await _accepted(server, self.path, own.id, page)
        draft_tokens = await self._draft_tokens(page)
        pictures = await vllm_pictures.sees(own.id, page)
        return Limits(own.id, own.max_model_len, draft_tokens, no_grammar, grammar, bounds_reasoning, pictures)

    def path_of(self, completion: Completion) -> str:
        return vllm_pictures.PATH if completion.pictures else self.path

    async def _draft_tokens(self, page: Page) -> int | None:
        """How many tokens vLLM drafts in a step; None if its metrics cannot be read."""
        try:
            status, metrics = await page("/metrics")
        except EngineError:
            return None
        if status != 200:
            return None
        # vLLM has a series for each draft position from the start.
        return sum(sample.name == "accepted_per_position_total" for sample in translated(metrics, self.table))

    def body(
        self, completion: Completion, vocabulary: Vocabulary, limits: Limits, request_id: str
    ) -> Mapping[str, object]:
        sampling = completion.sampling
        body: dict[str, object] = {
            "model": completion.adapter or limits.model,
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
            "stop_token_ids": stop_token_ids(completion, vocabulary),
        }
        if least := least_tokens(completion):
            body["min_tokens"] = least
        if completion.ends_loops:
            body["repetition_detection"] = _REPETITION  # versions without it ignore the field
        if sampling.logit_bias:
            body["logit_bias"] = sampling.logit_bias
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if completion.priority:
            body["priority"] = completion.priority
        if completion.cache_salt is not None:
            body["cache_salt"] = completion.cache_salt
        if (likeliest := _likeliest(completion)) is not None:
            body |= {"logprobs": likeliest, "return_tokens_as_token_ids": True}
        if completion.prompt_logprobs is not None:
            body["echo"] = True  # while it streams, vLLM refuses its own field prompt_logprobs
        if completion.reasoning_budget is not None and limits.bounds_reasoning:
            body["thinking_token_budget"] = completion.reasoning_budget
        outputs = None if completion.grammar is None else _outputs(completion.grammar, vocabulary, limits)
        if completion.pictures:
            return vllm_pictures.body(completion, vocabulary, body, outputs)
        if outputs is not None:
            body["structured_outputs"] = outputs
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> VLLMReader:
        return PicturesReader(completion, server) if completion.pictures else VLLMReader(completion, server)


def _outputs(grammar: Grammar, vocabulary: Vocabulary, limits: Limits) -> dict[str, str]:
    if limits.grammar == "lark":
        return {"grammar": guidance.write(grammar, vocabulary)}
    return {"structural_tag": structural_tag(grammar, vocabulary)}


def _likeliest(completion: Completion) -> int | None:
    """How many likeliest tokens vLLM has to report, for the prompt and the answer alike."""
    asked = [top for top in (completion.logprobs, completion.prompt_logprobs) if top is not None]
    return max(asked, default=None)


async def _accepted(server: str, path: str, model: str, page: Page) -> tuple[str | None, Writer, bool]:
    """Why vLLM accepts no grammar (None if it accepts one), the notation in which it accepts one, and whether it
    accepts budgets of reasoning.

    Raises `ServerLost` if vLLM is too busy to answer. No valid request with a grammar is sent: if vLLM's backend is
    auto, its first grammar decides for good which library it uses.
    """

    async def ask(path: str, transient: Container[int], **body: object) -> tuple[int, bytes]:
        status, answer = await page(path, {"model": model, **body})
        if status in transient:
            reason = f"HTTP status {status}: {message_of(answer)}"
            raise ServerLost(f"{server} cannot tell now what it accepts: {reason}")
        return status, answer

    async def refusal_of(**fields: object) -> str | None:
        """vLLM's error for a request with these fields and an impossible prompt."""
        status, answer = await ask(path, (*_BUSY, *_FAILED), prompt=[_NO_TOKEN], max_tokens=1, **fields)
        return message_of(answer) if status == 400 else None

    # Without a tokenizer (--skip-tokenizer-init) vLLM 0.32 does not check ids, and would compute the impossible prompt.
    if (await ask("/tokenize", _BUSY, prompt="a"))[0] != 200:
        return None, "structural_tag", False
    bad_prompt = await refusal_of()
    # A vLLM that does not know the field ignores it, also where its value is impossible.
    knows_budgets = bad_prompt is not None and await refusal_of(thinking_token_budget=_NO_BUDGET) != bad_prompt
    bounds_reasoning = knows_budgets and await refusal_of(thinking_token_budget=1) == bad_prompt
    if await refusal_of(structured_outputs={"structural_tag": _TAG}) in (None, bad_prompt):
        return None, "structural_tag", bounds_reasoning
    reason = await refusal_of(structured_outputs={"grammar": _LARK})
    if reason in (None, bad_prompt):
        return None, "lark", bounds_reasoning
    return f"{redacted(reason).rstrip('.')} (--grammar-backend xgrammar)", "lark", bounds_reasoning


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]

    def between(self, start: int, end: int | None) -> _Logprobs:
        """The entries from `start` up to `end`."""
        part = slice(start, end)
        return _Logprobs(self.tokens[part], self.token_logprobs[part], self.top_logprobs[part])


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
        #: The prompt whose log probabilities come with the first tokens, until they have come.
        self._prompt = completion.prompt if completion.prompt_logprobs is not None else ()
        self._of_prompt = completion.prompt_logprobs or 0
        self.cached = 0
        self.drafts: Drafts | None = None

    async def feed(self, data: bytes) -> TokenBatch | None:
        chunk = _CHUNK.decode(data)
        if chunk.error is not None:
            code = chunk.error.code
            raise refusal(self._server, code if isinstance(code, int) else 500, data)
        if chunk.choices:
            return self._choice(chunk.choices[0])
        # The last event has no choices, and counts the whole answer.
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            self.cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
        if chunk.metrics is not None and (counts := chunk.metrics.speculative_decoding) is not None:
            self.drafts = Drafts(counts.num_draft_tokens, counts.num_accepted_draft_tokens)
        return None

    def _choice(self, choice: _Choice) -> TokenBatch | None:
        if choice.token_ids is None:
            raise EngineError(f"{self._server} sends no token ids: vLLM 0.11 and later does")
        ids = tuple(choice.token_ids)
        scores, own = self._scores(choice.logprobs)
        logprobs = _logprobs(ids, own, self._likeliest) if self._likeliest is not None else ()
        finish = None if choice.finish_reason is None else _finish(self._server, choice.finish_reason)
        return TokenBatch(ids, finish, logprobs=logprobs, prompt_logprobs=scores) if ids or finish else None

    def _scores(self, logprobs: _Logprobs | None) -> tuple[tuple[TokenLogprob, ...], _Logprobs | None]:
        """The log probabilities of the prompt, if `logprobs` begins with them, and the rest of `logprobs`."""
        prompt, self._prompt = self._prompt, ()
        if not prompt:
            return (), logprobs
        if logprobs is None or logprobs.token_logprobs[:1] != [None]:
            raise msgspec.ValidationError("log probabilities that do not begin with the prompt")
        scores = _logprobs(prompt[1:], logprobs.between(1, len(prompt)), self._of_prompt)
        return scores, logprobs.between(len(prompt), None)


class _PicturesChoice(_Choice, frozen=True):
    logprobs: vllm_pictures.Logprobs | None = None  # type: ignore[assignment]


class _PicturesChunk(_Chunk, frozen=True):
    choices: list[_PicturesChoice] = []  # type: ignore[assignment]
    prompt_token_ids: list[int] | None = None


_PICTURES_CHUNK = msgspec.json.Decoder(_PicturesChunk)


class PicturesReader(VLLMReader):
    """Reads the answer to a prompt with pictures."""

    async def feed(self, data: bytes) -> TokenBatch | None:
        chunk = _PICTURES_CHUNK.decode(data)
        if not chunk.choices:
            return await super().feed(data)
        choice = chunk.choices[0]
        ids = tuple(choice.token_ids or ())
        finish = None if choice.finish_reason is None else _finish(self._server, choice.finish_reason)
        if not ids and finish is None:
            return None
        scores = () if self._likeliest is None else vllm_pictures.logprobs_of(ids, choice.logprobs, self._likeliest)
        prompt = None if chunk.prompt_token_ids is None else len(chunk.prompt_token_ids)
        return TokenBatch(ids, finish, logprobs=scores, prompt_tokens=prompt)


def _finish(server: str, reason: str) -> Finish:
    if reason == "repetition":
        return "length"
    if (finish := FINISHES.get(reason)) is not None:
        return finish
    raise EngineError(f"{server} ended the answer: {reason!r:.80}")


def _logprobs(ids: tuple[int, ...], logprobs: _Logprobs | None, likeliest: int) -> tuple[TokenLogprob, ...]:
    """vLLM lists the sampled token first, then the likeliest ones without it, so they are sorted here."""
    if logprobs is None or {
        len(logprobs.tokens),
        len(logprobs.token_logprobs),
        len(logprobs.top_logprobs),
    } != {len(ids)}:
        raise msgspec.ValidationError("log probabilities that do not match the tokens")
    columns = logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs
    parsed = []
    for token, name, own, top in zip(ids, *columns, strict=True):
        if own is None or _token(name) != token:
            raise msgspec.ValidationError("log probabilities that do not match the tokens")
        ranked = sorted((top or {}).items(), key=lambda each: -each[1])[:likeliest]
        parsed.append(TokenLogprob(token, own, tuple((_token(each), logprob) for each, logprob in ranked)))
    return tuple(parsed)


def _token(name: str) -> int:
    digits = name.removeprefix(_ID)
    if digits == name or len(digits) > _DIGITS or not digits.isdecimal():
        raise msgspec.ValidationError(f"log probabilities of a token without an id: {name!r:.40}")
    return int(digits)
