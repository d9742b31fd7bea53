"""Pictures for SGLang: POST /generate with prompt ids and `image_data`. From the source code of 0.5.23; never run.

Before it computes, SGLang decodes the ids of a prompt with pictures to text, and lets the model's processor read that
text: what a user wrote could then become control tokens, or a place for a picture. For most models it keeps the ids
after all (`SGLANG_MM_AVOID_RETOKENIZE`), but not for every model, picture and version. So it is asked first, for no new
token, which ids it makes of the prompt. Unless they are ours with more of the token that stands for a picture, the
request is refused. The prompt is in its cache then.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

import msgspec

from dovetail.backends.remote.dialect import Drafts, Page
from dovetail.backends.remote.errors import UNREADABLE
from dovetail.completion import Completion, TokenBatch
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest


async def sees(page: Page) -> bool:
    """Whether the server has a model that sees, and tells which ids it makes of a prompt."""
    with suppress(*UNREADABLE):
        status, answer = await page("/model_info")
        if status == 200 and _MODEL_INFO.decode(answer).has_image_understanding:
            nothing = {"input_ids": [0], "sampling_params": {"max_new_tokens": 0}, "return_prompt_token_ids": True}
            status, answer = await page("/generate", nothing)
            return status == 200 and _SHOWN.decode(answer).prompt_token_ids == [0]
    return False


async def after_a_look(
    complete: Callable[[Completion], AsyncGenerator[TokenBatch]], completion: Completion, context: int
) -> AsyncGenerator[TokenBatch]:
    """Stream `completion` by two requests to `complete`: one for no new token, which shows the prompt, and the rest.

    SGLang refuses more new tokens than its `context` has room for beside the whole prompt.
    """
    look = msgspec.structs.replace(completion, max_tokens=0, min_tokens=0, grammar=None, constraint=None, logprobs=None)
    async with aclosing(complete(look)) as looked:
        shown = await anext(looked)
    prompt = shown.prompt_tokens or 0
    most = min(completion.max_tokens, context - prompt)
    if most < 1:
        raise ContextExceeded(f"the prompt has {prompt} tokens with its pictures, and the context length is {context}")
    rest = msgspec.structs.replace(completion, max_tokens=most, min_tokens=min(completion.min_tokens, most))
    told: int | None = prompt
    async with aclosing(complete(rest)) as batches:
        async for batch in batches:
            # The second request finds the whole prompt in the cache, where the first one has put it.
            cached = None if batch.finish is None else shown.cached
            yield msgspec.structs.replace(batch, prompt_tokens=told, cached=cached)
            told = None


class _ModelInfo(msgspec.Struct, frozen=True):
    has_image_understanding: bool = False


class _Meta(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Shown(msgspec.Struct, frozen=True):
    prompt_token_ids: list[int] | None = None
    meta_info: _Meta = _Meta()


_MODEL_INFO, _SHOWN = msgspec.json.Decoder(_ModelInfo), msgspec.json.Decoder(_Shown)


class LookReader:
    """Reads the answer to a request for no new token."""

    def __init__(self, completion: Completion, server: str) -> None:
        self._completion, self._server = completion, server
        self.cached = 0
        self.drafts: Drafts | None = None

    async def feed(self, data: bytes) -> TokenBatch:
        shown = _SHOWN.decode(data)
        if shown.prompt_token_ids is None:
            raise EngineError(f"{self._server} does not tell which tokens it makes of a prompt with pictures")
        if not is_expanded(self._completion.prompt, shown.prompt_token_ids, self._completion.picture_token):
            raise InvalidRequest(
                "this engine would read texts as control tokens: SGLang does not keep the tokens of this prompt beside "
                "its pictures"
            )
        self.cached = shown.meta_info.cached_tokens
        return TokenBatch((), "length", prompt_tokens=len(shown.prompt_token_ids))


def is_expanded(prompt: Sequence[int], shown: Sequence[int], place: int | None) -> bool:
    """Whether `shown` is `prompt` with one or more of the token `place` for each of them."""
    ours, theirs = _runs(prompt, place), _runs(shown, place)
    return len(ours) == len(theirs) and all(
        one == other or (one[0] == other[0] == place and len(one) < len(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def _runs(ids: Sequence[int], place: int | None) -> list[list[int]]:
    """The runs of `place`, and of other tokens."""
    return [[*run] for _, run in itertools.groupby(ids, lambda token: token == place)]
