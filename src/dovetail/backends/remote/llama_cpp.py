"""llama.cpp's dialect: POST /completion with prompt ids. Tested with build 11312 (0.5.0).

A server built with LLAMA_LLGUIDANCE, which it is asked once, gets a grammar in llguidance's Lark, any other in GBNF.
llama.cpp reads a control token in a text as the characters that it spells. So GBNF's texts exclude the characters of
the grammar's own control tokens, and the request forbids the others.

A request's `draft_tokens` cannot be sent. Frequency and presence penalties count the prompt too.

A stream sends no event for a token that ends inside a character; only the token count goes on. The ids of such tokens
are recovered: the server tokenizes that piece of text. If this gives another number of tokens or another last one, the
model spelled the text differently, and the ids are another spelling of the same text.

llama.cpp has no stop tokens: the caller ends the stream at them. It has no least number of tokens either, only answers
without an end: `min_tokens` are a request of their own. Together with a grammar, which begins anew in each, they are
refused.

With log probabilities the answer is not streamed, because some would be lost. llama.cpp reports none
for such tokens, nor for tokens that it drafted; a request that needs them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from dovetail.backends.remote.counters import Counted, Table
from dovetail.backends.remote.dialect import Count, Drafts, Limits, Page, gbnf, lark, least_tokens, read, stop_token_ids
from dovetail.backends.remote.errors import ErrorBody, ServerLost, refusal
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch, TokenLogprob
from dovetail.errors import EngineError, InvalidRequest

#: The first build known to refuse a bad grammar without aborting.
_REFUSES_SINCE = 11312
_LLGUIDANCE = "%llguidance {}\n"
#: What llama.cpp sends for bytes that are not valid UTF-8.
_NO_CHARACTER = "\ufffd"
#: The control tokens at which llama.cpp ends an answer, whatever the model's files say (its src/llama-vocab.cpp).
#: "<|end|>" does not end an answer if the tokenizer has all tokens of an entry of `_WITH_END`.
_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> "
    "[e~[".split()
)
_WITH_END = (
    {"<|return|>", "<|call|>"},
    {"<|return|>", "<|calls|>"},
    {"<|flush|>", "<|call|>"},
    {"<|flush|>", "<|calls|>"},
)
_PROBE = _LLGUIDANCE + 'start: "a"\n'


class LlamaCpp:
    name: ClassVar[str] = "llama.cpp"
    path: ClassVar[str] = "/completion"
    # Each idle connection occupies one of its few HTTP threads, and it closes a connection after a stream unannounced.
    keeps: ClassVar[bool] = False
    scores_prompts: ClassVar[bool] = False
    delays_ends: ClassVar[bool] = False
    salts_cache: ClassVar[bool] = False
    priorities: ClassVar[bool] = False
    adapters: ClassVar[bool] = False
    rereads: ClassVar[bool] = False
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
                f"{server} is llama.cpp's router, which has no model of its own: name a server that has one"
            )
        no_grammar, notation = await _notation(props.build_info, page)
        return Limits(props.model_alias or props.model_path, context, None, no_grammar, notation)

    def path_of(self, completion: Completion) -> str:
        return self.path

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
            # In the order of `Sampling`, without llama.cpp's other samplers.
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
        biases: dict[int, float | bool] = {**sampling.logit_bias}
        if completion.min_tokens:
            if completion.min_tokens < completion.max_tokens or completion.grammar is not None:
                raise InvalidRequest("llama.cpp does not support min_tokens here", param="min_tokens")
            biases |= dict.fromkeys(stop_token_ids(completion, vocabulary), False)  # never
        if completion.min_tokens or least_tokens(completion):
            body["ignore_eos"] = True
        if completion.grammar is not None and limits.grammar == "lark":
            body["grammar"] = _LLGUIDANCE + lark(completion.grammar, vocabulary.control)
        elif completion.grammar is not None and _has_no_end_inside(completion, vocabulary):
            # An end is never forbidden: behind a whole text llama.cpp allows ends alone, and aborts if there is none.
            stops = {*stop_token_ids(completion, vocabulary)}
            ends = ends_of(vocabulary) | {name for name, token in vocabulary.control.items() if token in stops}
            body["grammar"] = gbnf(completion.grammar, vocabulary.control, ends)
            kept = ends.union(completion.grammar.control_tokens())
            biases |= {token: False for name, token in vocabulary.control.items() if name not in kept}
        if biases:
            body["logit_bias"] = [*biases.items()]
        if sampling.seed is not None:
            body["seed"] = sampling.seed % (2**32 - 1)  # 2**32 - 1 asks for a random seed
        if completion.logprobs is not None:
            body["n_probs"] = max(1, completion.logprobs)
        return body

    def reader(self, completion: Completion, server: str, page: Page) -> LlamaCppReader:
        return LlamaCppReader(completion, server, page)


def ends_of(vocabulary: Vocabulary) -> set[str]:
    """The control tokens at which llama.cpp ends an answer."""
    ends = {name for name, token in vocabulary.control.items() if name in _ENDS or token in vocabulary.eos_ids}
    return ends - {"<|end|>"} if any(vocabulary.control.keys() >= others for others in _WITH_END) else ends


def _has_no_end_inside(completion: Completion, vocabulary: Vocabulary) -> bool:
    """Whether llama.cpp goes on after every control token of the grammar: where GBNF allows no token but one that ends
    an answer, the server aborts. Raises `InvalidRequest` if the answer must be constrained."""
    assert completion.grammar is not None
    ends = ends_of(vocabulary).intersection(completion.grammar.control_tokens())
    if ends and completion.grammar_required:
        raise InvalidRequest(
            f"llama.cpp ends an answer at {min(ends)}, which this one needs before its end: it cannot be constrained"
        )
    return not ends


async def _notation(build: str, page: Page) -> tuple[str | None, Literal["lark", "gbnf"]]:
    """Why the server accepts no grammar, None if it may accept one; and the notation.

    Builds before 11312 are not asked: build 9994 aborts at an llguidance grammar if it was built without llguidance
    (ggml-org/llama.cpp#25960).
    """
    number = build.removeprefix("b").partition("-")[0]
    if not number.isdecimal() or int(number) < _REFUSES_SINCE:
        return (
            f"llama.cpp {build:.40} may abort at a grammar, b{_REFUSES_SINCE} is the first known not to; ask for "
            "strict=off instead"
        ), "lark"
    try:
        status, answer = await page("/completion", {"prompt": [0], "n_predict": 0, "grammar": _PROBE})
    except ServerLost:
        return None, "gbnf"  # too busy to answer; every build knows GBNF
    return None, "gbnf" if status == 400 and b"llguidance" in answer else "lark"


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
        # Events about the prompt contain ids that are not of the answer.
        new = event.tokens_predicted - self._seen
        ids = tuple(event.tokens) if new else ()
        # The last event omits the token that ended the turn, or an incomplete character.
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
        """The ids of `text`, if possible `count` ids that end in `sent`. Raises `EngineError` if there are none."""
        status, body = await self._page("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        ids = tuple(msgspec.json.decode(body, type=_Tokenized).tokens) if status == 200 else ()
        # SentencePiece tokenizers add a space before every text.
        for spelling in (ids, ids[1:]):
            if len(spelling) == count and spelling[count - len(sent) :] == sent:
                return spelling
        for spelling in (ids, ids[1:]):
            if 0 < len(spelling) <= count and await self._text(spelling) == text:
                return spelling
        if _NO_CHARACTER in text:
            return sent  # the other tokens spell no character
        raise EngineError(
            f"{self._server} omitted ids, and its tokenizer does not return the ids of the text that it sent"
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

    def _logprobs(self, ids: tuple[int, ...], probabilities: list[_Probability]) -> tuple[TokenLogprob, ...]:
        # A drafted token has no top_logprobs, although at least one is always requested.
        if [each.id for each in probabilities] != list(ids) or not all(each.top_logprobs for each in probabilities):
            raise InvalidRequest(
                f"{self._server} does not report all log probabilities: llama.cpp has none for tokens that it drafted, "
                "nor for tokens that end inside a character"
            )
        return tuple(
            TokenLogprob(
                each.id, each.logprob, tuple((top.id, top.logprob) for top in each.top_logprobs[: self._likeliest])
            )
            for each in probabilities
        )
