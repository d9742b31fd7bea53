"""llama.cpp's dialect: POST /completion with prompt ids. Run with build 11312 (0.5.0).

A grammar goes as llguidance's Lark, for which a server must have been built with LLAMA_LLGUIDANCE; whether it was is
asked once. `draft_tokens` of one request is left out; frequency and presence penalties count the prompt too.

A stream leaves out the ids of tokens after which a character is incomplete: no event is sent for them, only the count
goes on. The server is then asked to tokenize that piece of text. Where this does not give as many tokens with the same
last one, the model had spelled it in another way, and the ids are another spelling of the same text.
With log probabilities, which would be lost too, nothing is streamed. Those of such tokens it does not tell, nor those
of tokens that it drafted; then the request is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from dovetail.backends.remote.counters import Counted, Table
from dovetail.backends.remote.dialect import Count, Drafts, Limits, Page, lark, read
from dovetail.backends.remote.errors import ErrorBody, ServerLost, refusal
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError, InvalidRequest

#: The first build that is known to refuse a grammar that it cannot read, and not to die of it.
_REFUSES_SINCE = 11312
_LLGUIDANCE = "%llguidance {}\n"
#: What it sends for bytes that are no character.
_NO_CHARACTER = "\ufffd"
_PROBE = _LLGUIDANCE + 'start: "a"\n'


class LlamaCpp:
    name: ClassVar[str] = "llama.cpp"
    path: ClassVar[str] = "/completion"
    # Its few threads for HTTP wait for idle connections, while requests on others wait for a thread; and it closes a
    # connection after a stream without having said so.
    keeps: ClassVar[bool] = False
    table: ClassVar[Table] = {
        "running": Counted("llamacpp:requests_processing"),
        "waiting": Counted("llamacpp:requests_deferred"),
        "prompt_tokens_total": Counted("llamacpp:prompt_tokens_total"),
        "prompt_tokens_cached_total": Counted("llamacpp:prompt_tokens_cached_total"),
        "steps_total": Counted("llamacpp:n_decode_total"),
        "drafts_total": Counted("llamacpp:spec_decode_num_drafts_total"),
        "drafted_total": Counted("llamacpp:spec_decode_num_draft_tokens_total"),
        "accepted_total": Counted("llamacpp:spec_decode_num_accepted_tokens_total"),
        "accepted_per_position_total": Counted("llamacpp:spec_decode_num_accepted_tokens_per_pos_total", by="position"),
    }

    async def limits(self, server: str, page: Page) -> Limits:
        props: _Props = await read(server, page, "/props", _Props)
        context = props.default_generation_settings.n_ctx
        if context == 0:
            raise EngineError(
                f"{server} is llama.cpp's router, which has no model of its own: give a server that has one"
            )
        no_grammar = await _no_grammar(props.build_info, page)
        return Limits(props.model_alias or props.model_path, context, None, no_grammar, "lark")

    def body(
        self, completion: Completion, vocabulary: Vocabulary, limits: Limits, request_id: str
    ) -> Mapping[str, object]:
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
            "repeat_last_n": len(completion.prompt) + completion.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % (2**32 - 1)  # the one above stands for a seed of its own choice
        if completion.logprobs is not None:
            body["n_probs"] = max(1, completion.logprobs)
        if completion.grammar is not None:
            body["grammar"] = _LLGUIDANCE + lark(completion.grammar, vocabulary.control)
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> LlamaCppReader:
        return LlamaCppReader(completion, server, page)


async def _no_grammar(build: str, page: Page) -> str | None:
    """Why a server takes no grammar, None where it may: one with another build's number than `b11312-…` is not asked.

    b9994 aborts at llguidance's grammar where it was built without it (ggml-org/llama.cpp#25960).
    """
    number = build.removeprefix("b").partition("-")[0]
    if not number.isdecimal() or int(number) < _REFUSES_SINCE:
        return (
            f"llama.cpp {build:.40} may abort at a grammar, b{_REFUSES_SINCE} is the first known not to; ask for "
            "strict=off instead"
        )
    try:
        status, said = await page("/completion", {"prompt": [0], "n_predict": 0, "grammar": _PROBE})
    except ServerLost:
        return None  # busy: what it says to the first such request is passed on
    if status == 400 and b"llguidance" in said:
        return "this llama.cpp was built without llguidance (cmake -DLLAMA_LLGUIDANCE=ON); ask for strict=off instead"
    return None


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _Settings
    build_info: str = ""
    model_alias: str = ""
    model_path: str = ""


class _Probability(msgspec.Struct, frozen=True):
    id: int
    logprob: float
    top_logprobs: list[_Probability] = []


class _Timings(msgspec.Struct, frozen=True):
    cache_n: Count = 0
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class _Event(msgspec.Struct, frozen=True):
    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = "none"
    completion_probabilities: list[_Probability] = []
    timings: _Timings = _Timings()
    error: ErrorBody | None = None


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Detokenized(msgspec.Struct, frozen=True):
    content: str


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
        # What the last event leaves out is the token that ended the turn, or a character that did not get whole.
        if len(ids) < new and not event.stop:
            ids = await self._spelled(event.content, new, ids)
        self._seen += new
        logprobs = self._logprobs(ids, event.completion_probabilities) if self._likeliest is not None else ()
        if not event.stop:
            return TokenBatch(ids, logprobs=logprobs) if ids else None
        timings = event.timings
        self.drafts = Drafts(timings.draft_n, timings.draft_n_accepted)
        self.cached = timings.cache_n
        return TokenBatch(ids, self._finish(event.stop_type), logprobs=logprobs)

    async def _spelled(self, text: str, count: int, sent: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of `text`, `count` of them that end in `sent` if it can be spelled so. Raises `EngineError`."""
        status, body = await self._page("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        ids = tuple(msgspec.json.decode(body, type=_Tokenized).tokens) if status == 200 else ()
        # SentencePiece's tokenizers put a space before every text.
        for spelling in (ids, ids[1:]):
            if len(spelling) == count and spelling[count - len(sent) :] == sent:
                return spelling
        for spelling in (ids, ids[1:]):
            if 0 < len(spelling) <= count and await self._text(spelling) == text:
                return spelling
        if _NO_CHARACTER in text:
            return sent  # what the others spelled is none
        raise EngineError(
            f"{self._server} left out ids, and its tokenizer does not give those of the text that it sent"
        )

    async def _text(self, ids: tuple[int, ...]) -> str | None:
        status, body = await self._page("/detokenize", {"tokens": ids})
        return msgspec.json.decode(body, type=_Detokenized).content if status == 200 else None

    def _finish(self, stop_type: str) -> Finish:
        if stop_type in ("eos", "word"):
            return "stop"
        if stop_type == "limit":
            return "length"
        raise EngineError(f"{self._server} ended the answer: {stop_type:.80}")

    def _logprobs(self, ids: tuple[int, ...], said: list[_Probability]) -> tuple[TokenLogprob, ...]:
        # Of drafted tokens it says 0, and none of the likeliest, of which one is always asked for.
        if [each.id for each in said] != list(ids) or not all(each.top_logprobs for each in said):
            raise InvalidRequest(
                f"{self._server} does not tell all log probabilities: llama.cpp has none of tokens that it drafted, "
                "nor of those after which a character is incomplete"
            )
        return tuple(
            TokenLogprob(
                each.id, each.logprob, tuple((top.id, top.logprob) for top in each.top_logprobs[: self._likeliest])
            )
            for each in said
        )
