"""Pictures for vLLM: POST /inference/v1/generate (vLLM 0.32 and later, started with --enable-scale-out).

Its `token_ids` have the model's own token for each picture, and `content_parts` the pictures in order. vLLM puts as
many tokens into each place as the model needs, and reports the whole prompt with the first tokens. Each time that vLLM
becomes healthy, it is asked whether it has that endpoint and a model that sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from dovetail.backends.remote.dialect import Page, least_tokens, stop_token_ids
from dovetail.backends.remote.errors import message_of
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, TokenLogprob

PATH = "/inference/v1/generate"
#: No picture: a model that sees tries to read it, and one that does not refuses it before.
_NO_PICTURE = {"type": "image_url", "url": "data:image/png;base64,AAAA"}
_UNREADABLE = re.compile(r"(load|identify|decode|read|open)\w* .*image", re.IGNORECASE)


async def sees(model: str, page: Page) -> bool:
    """Whether the server takes pictures. Nothing is computed: its model would see a picture that cannot be read."""
    body = {"model": model, "token_ids": [0], "content_parts": [_NO_PICTURE], "sampling_params": {"max_tokens": 1}}
    status, answer = await page(PATH, body)
    return status == 400 and _UNREADABLE.search(message_of(answer)) is not None


def body(
    completion: Completion, vocabulary: Vocabulary, fields: Mapping[str, object], outputs: Mapping[str, str] | None
) -> Mapping[str, object]:
    """The request for a completion with pictures.

    `fields`: the request to /v1/completions. `outputs`: the grammar, if there is one.
    """
    sampling: dict[str, object] = {
        "max_tokens": completion.max_tokens,
        "stop_token_ids": stop_token_ids(completion, vocabulary),
        "min_tokens": least_tokens(completion),
        **{name: fields[name] for name in _SAMPLING if name in fields},
    }
    whole: dict[str, object] = {
        "model": fields["model"],
        "request_id": fields["request_id"],
        "token_ids": completion.prompt,
        "content_parts": [{"type": "image_url", "url": picture.url} for picture in completion.pictures],
        "sampling_params": sampling,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    whole |= {name: fields[name] for name in ("cache_salt", "priority") if name in fields}
    if outputs is not None:
        sampling["structured_outputs"] = outputs
        whole["reasoning_ended"] = True  # the grammar has the reasoning, so it applies from the first token
    return whole


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repetition_detection",
    "logit_bias",
    "seed",
    "logprobs",
    "thinking_token_budget",
)


class _Likely(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float


class _Own(_Likely, frozen=True):
    top_logprobs: list[_Likely] = []


class Logprobs(msgspec.Struct, frozen=True):
    """The log probabilities of one event."""

    content: list[_Own] = []


def logprobs_of(ids: tuple[int, ...], logprobs: Logprobs | None, likeliest: int) -> tuple[TokenLogprob, ...]:
    if logprobs is None or [own.token_id for own in logprobs.content] != list(ids):
        raise msgspec.ValidationError("log probabilities that do not match the tokens")
    return tuple(
        TokenLogprob(
            own.token_id,
            own.logprob,
            tuple(
                (each.token_id, each.logprob)
                for each in sorted(own.top_logprobs, key=lambda each: -each.logprob)[:likeliest]
            ),
        )
        for own in logprobs.content
    )
