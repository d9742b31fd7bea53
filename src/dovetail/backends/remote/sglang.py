"""SGLang's dialect: POST /generate with prompt ids. Written from the source code of 0.5.23; never run with SGLang.

SGLang differs from `Completion` in three points. Log probabilities are those after temperature, penalties and
constraint, unless the server has SGLANG_RETURN_ORIGINAL_LOGPROB set. `seed` has an effect only with
--enable-deterministic-inference. A request's `draft_tokens` cannot be sent. Each event of a stream repeats all earlier
tokens, unless the server was started with --incremental-streaming-output; both kinds are read.

`ignore_eos` is sent as `min_new_tokens`, before which SGLang chooses no token that ends an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from dovetail.backends.remote import sglang_pictures
from dovetail.backends.remote.counters import Counted, Table
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
from dovetail.backends.remote.errors import ErrorBody, refusal
from dovetail.backends.remote.sglang_pictures import LookReader
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError


class SGLang:
    name: ClassVar[str] = "SGLang"
    path: ClassVar[str] = "/generate"
    keeps: ClassVar[bool] = True
    scores_prompts: ClassVar[bool] = False
    delays_ends: ClassVar[bool] = True
    salts_cache: ClassVar[bool] = True
    priorities: ClassVar[bool] = True
    adapters: ClassVar[bool] = False
    rereads: ClassVar[bool] = True
    # SGLang has no counter of draft tokens; `Server` adds up those that the answers report.
    table: ClassVar[Table] = {
        "running": Counted("sglang:num_running_reqs"),
        "waiting": Counted("sglang:num_queue_reqs"),
        "kv_cache_usage": Counted("sglang:token_usage", mean=True),
        "preemptions_total": Counted("sglang:num_retracted_requests_total"),
        "prompt_tokens_total": Counted("sglang:prompt_tokens_total"),
        "prompt_tokens_cached_total": Counted("sglang:cached_tokens_total"),
        "drafts_total": Counted("sglang:spec_verify_calls_total"),
    }

    async def limits(self, server: str, page: Page) -> Limits:
        models: Models = await read(server, page, "/v1/models", Models)
        if not models.data or models.data[0].max_model_len is None:
            raise EngineError(f"{server} lists no model with its max_model_len")
        info: _ServerInfo = await read(server, page, "/server_info", _ServerInfo)
        # SGLang counts the token that each verification adds as a draft token.
        drafts = max(0, (info.speculative_num_draft_tokens or 1) - 1) if info.speculative_algorithm else 0
        pictures = await sglang_pictures.sees(page)
        return Limits(models.data[0].id, models.data[0].max_model_len, drafts, pictures=pictures)

    def path_of(self, completion: Completion) -> str:
        return self.path

    def body(
        self, completion: Completion, vocabulary: Vocabulary, limits: Limits, request_id: str
    ) -> Mapping[str, object]:
        sampling = completion.sampling
        params: dict[str, object] = {
            "max_new_tokens": completion.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": stop_token_ids(completion, vocabulary),
            "no_stop_trim": True,
            "skip_special_tokens": False,
        }
        if least := least_tokens(completion):
            params["min_new_tokens"] = least
        if sampling.logit_bias:
            params["logit_bias"] = sampling.logit_bias
        if sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        if completion.grammar is not None:
            params["structural_tag"] = structural_tag(completion.grammar, vocabulary)
        body: dict[str, object] = {
            "rid": request_id,
            "input_ids": completion.prompt,
            "sampling_params": params,
            "stream": True,
        }
        if completion.priority:
            body["priority"] = completion.priority
        if completion.cache_salt is not None:
            body["extra_key"] = completion.cache_salt  # its `cache_salt` is younger, and does the same
        if completion.pictures:
            body["image_data"] = [picture.url for picture in completion.pictures]
        if not completion.max_tokens:
            body |= {"stream": False, "return_prompt_token_ids": True}
        if completion.logprobs is not None:
            body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": completion.logprobs}
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> SGLangReader | LookReader:
        return SGLangReader(completion, server) if completion.max_tokens else LookReader(completion, server)


class _ServerInfo(msgspec.Struct, frozen=True):
    speculative_algorithm: str | None = None
    speculative_num_draft_tokens: int | None = None


class _FinishReason(msgspec.Struct, frozen=True):
    type: str
    message: str = ""
    status_code: int | None = None


#: Logarithm, id, text.
_Logprob = tuple[float | None, int, str | None]


class _Meta(msgspec.Struct, frozen=True):
    completion_tokens: Count = 0
    cached_tokens: Count = 0
    finish_reason: _FinishReason | None = None
    output_token_logprobs: list[_Logprob] = []
    output_top_logprobs: list[list[_Logprob] | None] = []
    spec_num_proposed_drafts: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_correct_drafts_histogram: list[Count] = []


class _Event(msgspec.Struct, frozen=True):
    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    error: ErrorBody | None = None


_EVENT = msgspec.json.Decoder(_Event)


class SGLangReader:
    def __init__(self, completion: Completion, server: str) -> None:
        self._server, self._likeliest = server, completion.logprobs
        self._seen = 0
        self.cached = 0
        self.drafts: Drafts | None = None

    async def feed(self, data: bytes) -> TokenBatch | None:
        event = _EVENT.decode(data)
        if event.error is not None:
            code = event.error.code
            raise refusal(self._server, code if isinstance(code, int) else 500, data)
        meta = event.meta_info
        # An event has all tokens so far, or only the new ones; the total count tells which.
        start = self._seen if len(event.output_ids) >= meta.completion_tokens else 0
        ids = tuple(event.output_ids[start:])
        logprobs = self._logprobs(ids, meta, start) if self._likeliest is not None else ()
        self._seen += len(ids)
        self.cached = meta.cached_tokens
        if meta.spec_num_proposed_drafts is not None:
            histogram = meta.spec_correct_drafts_histogram
            self.drafts = Drafts(
                meta.spec_num_proposed_drafts,
                meta.spec_num_correct_drafts or 0,
                # Entry n of the histogram counts the steps that accepted exactly n drafts.
                tuple(sum(histogram[n + 1 :]) for n in range(max(0, len(histogram) - 1))),
            )
        finish = None if meta.finish_reason is None else self._finish(meta.finish_reason)
        return TokenBatch(ids, finish, logprobs=logprobs) if ids or finish else None

    def _finish(self, reason: _FinishReason) -> Finish:
        if (finish := FINISHES.get(reason.type)) is not None:
            return finish
        if reason.status_code is not None:
            raise refusal(self._server, reason.status_code, reason.message)
        raise EngineError(f"{self._server} ended the answer: {reason.type!r:.80} {reason.message!r:.200}")

    def _logprobs(self, ids: tuple[int, ...], meta: _Meta, start: int) -> tuple[TokenLogprob, ...]:
        own = meta.output_token_logprobs[start : start + len(ids)]
        likeliest = meta.output_top_logprobs[start : start + len(ids)] if self._likeliest else [None] * len(ids)
        if [token for _, token, _ in own] != list(ids) or len(likeliest) != len(ids):
            raise msgspec.ValidationError("log probabilities that do not match the tokens")
        parsed = []
        for (logprob, token, _), top in zip(own, likeliest, strict=True):
            if logprob is None:
                raise msgspec.ValidationError("a token without its log probability")
            ranked = tuple((each, value) for value, each, _ in top or () if value is not None)
            parsed.append(TokenLogprob(token, logprob, ranked[: self._likeliest]))
        return tuple(parsed)
