"""llama.cpp's dialect: POST /completion with prompt ids. Written from its sources of 2026, and not run with one yet.

A grammar goes as llguidance's Lark, which a server that was built with LLAMA_LLGUIDANCE takes; another refuses it.
`draft_tokens` of one request is left out; frequency and presence penalties count the prompt too.

A stream leaves out the ids of tokens after which a character is incomplete: no event is sent for them, only the count
goes on. The server is then asked to tokenize that piece of text; where this gives another number of tokens, or another
last one, the answer ends with an `EngineError`. With log probabilities, which would be lost too, nothing is streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from dovetail.backends.remote.counters import Counted, Table
from dovetail.backends.remote.dialect import Drafts, Limits, Page, read
from dovetail.backends.remote.faults import ErrorBody, refusal
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError, InvalidRequest


class LlamaCpp:
    name: ClassVar[str] = "llama.cpp"
    path: ClassVar[str] = "/completion"
    table: ClassVar[Table] = {
        "running": Counted("llamacpp:requests_processing"),
        "waiting": Counted("llamacpp:requests_deferred"),
        "prompt_tokens_total": Counted("llamacpp:prompt_tokens_total"),
        "prompt_tokens_cached_total": Counted("llamacpp:prompt_tokens_cached_total"),
        "steps_total": Counted("llamacpp:n_decode_total"),
        "drafts_total": Counted("llamacpp:spec_decode_num_drafts_total"),
        "drafted_total": Counted("llamacpp:spec_decode_num_draft_tokens_total"),
        "accepted_total": Counted("llamacpp:spec_decode_num_accepted_tokens_total"),
    }

    async def limits(self, server: str, page: Page) -> Limits:
        props: _Props = await read(server, page, "/props", _Props)
        return Limits(props.model_alias or props.model_path, props.default_generation_settings.n_ctx, 0)

    def body(self, completion: Completion, vocabulary: Vocabulary, model: str, request_id: str) -> Mapping[str, object]:
        sampling = completion.sampling
        body: dict[str, object] = {
            "prompt": completion.prompt,
            "n_predict": completion.max_tokens,
            "stream": completion.logprobs is None,
            "return_tokens": True,
            "cache_prompt": True,
            # In the order that `Sampling` names, and none of the others that it would add.
            "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": -1,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % (2**32 - 1)  # the one above stands for a seed of its own choice
        if completion.logprobs is not None:
            body["n_probs"] = max(1, completion.logprobs)
        if completion.grammar is not None:
            try:
                body["grammar"] = "%llguidance {}\n" + completion.grammar.lark(vocabulary.control)
            except ValueError as error:
                raise InvalidRequest(f"this cannot be constrained on this engine: {error}") from error
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> LlamaCppReader:
        return LlamaCppReader(completion, server, page)


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _Settings
    model_alias: str = ""
    model_path: str = ""


class _Probability(msgspec.Struct, frozen=True):
    id: int
    logprob: float
    top_logprobs: list[_Probability] = []


class _Timings(msgspec.Struct, frozen=True):
    prompt_n: int | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Event(msgspec.Struct, frozen=True):
    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    stop: bool = False
    stop_type: str = "none"
    completion_probabilities: list[_Probability] = []
    timings: _Timings = _Timings()
    error: ErrorBody | None = None


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


_EVENT = msgspec.json.Decoder(_Event)


class LlamaCppReader:
    def __init__(self, completion: Completion, server: str, page: Page) -> None:
        self._server, self._likeliest, self._page = server, completion.logprobs, page
        self._seen = 0
        self.cached = 0
        self.drafts: Drafts | None = None

    async def feed(self, data: bytes) -> TokenBatch | None:
        event = _EVENT.decode(data)
        if event.error is not None:
            code = event.error.code
            raise refusal(self._server, code if isinstance(code, int) else 500, data)
        # Events that tell of the prompt have ids that are none.
        new = event.tokens_predicted - self._seen
        ids = tuple(event.tokens) if new else ()
        if len(ids) < new and not self._ends_unsaid(event, new - len(ids)):
            ids = await self._spelled(event.content, new, ids)
        self._seen += len(ids)
        logprobs = self._logprobs(ids, event.completion_probabilities) if self._likeliest is not None else ()
        if not event.stop:
            return TokenBatch(ids, logprobs=logprobs) if ids else None
        timings = event.timings
        self.drafts = Drafts(timings.draft_n, timings.draft_n_accepted)
        self.cached = 0 if timings.prompt_n is None else max(0, event.tokens_evaluated - timings.prompt_n)
        return TokenBatch(ids, self._finish(event.stop_type), logprobs=logprobs)

    def _ends_unsaid(self, event: _Event, missing: int) -> bool:
        """Whether all that was left out is the token that ended the turn."""
        return event.stop and event.stop_type == "eos" and missing == 1

    async def _spelled(self, text: str, count: int, sent: tuple[int, ...]) -> tuple[int, ...]:
        status, body = await self._page("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        ids = tuple(msgspec.json.decode(body, type=_Tokenized).tokens) if status == 200 else ()
        if len(ids) != count or ids[len(ids) - len(sent) :] != sent:
            raise EngineError(
                f"{self._server} left out ids: llama.cpp sends none where a character takes several tokens, and what "
                "it sent of the text does not tell them"
            )
        return ids

    def _finish(self, stop_type: str) -> Finish:
        if stop_type in ("eos", "word"):
            return "stop"
        if stop_type == "limit":
            return "length"
        raise EngineError(f"{self._server} ended the answer: {stop_type:.80}")

    def _logprobs(self, ids: tuple[int, ...], said: list[_Probability]) -> tuple[TokenLogprob, ...]:
        if [each.id for each in said] != list(ids):
            raise msgspec.ValidationError("log probabilities that are not those of the tokens")
        return tuple(
            TokenLogprob(
                each.id, each.logprob, tuple((top.id, top.logprob) for top in each.top_logprobs[: self._likeliest])
            )
            for each in said
        )
