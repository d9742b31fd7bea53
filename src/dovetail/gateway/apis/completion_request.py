"""The body of a completion, typed and checked, and the turn that it asks for; every error names the field."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.apis.request_body import (
    UNSUPPORTED,
    SamplingRequest,
    Unsupported,
    check_own_fields,
    check_unsupported,
    decode_body,
)
from dovetail.gateway.turn.turn_request import Extension, RawPrompt, TurnRequest, sampling_fields

#: The most answers to one request: prompts times `n`.
MAX_ANSWERS = 128
MAX_LOGPROBS = 5
#: New tokens without `max_tokens`, as in OpenAI's API.
DEFAULT_MAX_TOKENS = 16

_LARGEST_TOKEN = 2**31


class RawExtension(Extension, frozen=True):
    """The request's `dovetail` field. `control_tokens`: see `RawPrompt.controls`."""

    control_tokens: bool | None = None


class CompletionRequest(SamplingRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`. `prompt` is as sent; `prompts` reads it."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None
    dovetail: RawExtension | None = None
    # Not supported.
    suffix: Any = None
    best_of: Any = None
    skip_special_tokens: Any = None
    response_format: Any = None
    prompt_embeds: Any = None
    return_tokens_as_token_ids: Any = None

    @property
    def echoes_only(self) -> bool:
        """Whether the prompt is all that the client wants back."""
        return self.max_tokens == 0

    @property
    def prompts(self) -> tuple[RawPrompt, ...]:
        """The prompts, in order. Raises `InvalidRequest` for anything but a text, token ids, or a list of either."""
        given = self.prompt
        if isinstance(given, list) and given and not isinstance(given[0], int):
            return tuple(self._raw(each, f"prompt[{i}]") for i, each in enumerate(given))
        return (self._raw(given, "prompt"),)

    def _raw(self, content: Any, field: str) -> RawPrompt:
        controls = bool(self.dovetail and self.dovetail.control_tokens)
        if isinstance(content, str):
            return RawPrompt(content, self.add_special_tokens is not False, controls, field)
        if not isinstance(content, list):
            raise InvalidRequest(f"{field} must be a text or a list of token ids", param=field)
        for i, token in enumerate(content):
            if type(token) is not int or not 0 <= token < _LARGEST_TOKEN:
                raise InvalidRequest(f"{field}[{i}] must be a token id", param=f"{field}[{i}]")
        return RawPrompt(tuple(content), field=field)


_UNSUPPORTED: Unsupported = UNSUPPORTED | {
    "suffix": ((None, ""), "suffix is not supported: these models continue a text and do not fill it in"),
    "best_of": ((None, 1), "best_of is not supported: use n"),
    "skip_special_tokens": (
        (None, False),
        "skip_special_tokens must be false: the text of a completion shows every token",
    ),
    "response_format": ((None, {"type": "text"}), "response_format is not supported here: use chat completions"),
    "prompt_embeds": ((None,), "prompt_embeds are not supported"),
    "return_tokens_as_token_ids": (
        (None, False),
        "return_tokens_as_token_ids is not supported: use dovetail.return_token_ids",
    ),
}

_DECODER = msgspec.json.Decoder(CompletionRequest)


def decode(body: bytes) -> CompletionRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    request = decode_body(_DECODER, body)
    if request.prompt is None:
        raise InvalidRequest("prompt is required", param="prompt")
    check_unsupported(request, _UNSUPPORTED)
    check_own_fields(None, request.dovetail)
    if request.dovetail is not None and request.dovetail.record:
        raise InvalidRequest("a completion has no message that could carry a record", param="dovetail.record")
    if request.dovetail is not None and request.dovetail.reasoning_budget is not None:
        message = "nothing in a completion is read as reasoning, so dovetail.reasoning_budget has no meaning"
        raise InvalidRequest(message, param="dovetail.reasoning_budget")
    if request.echoes_only and not request.echo:
        raise InvalidRequest("max_tokens: 0 asks for nothing, unless with echo: true", param="max_tokens")
    answers = len(request.prompts) * (request.n or 1)
    if answers > MAX_ANSWERS:
        raise InvalidRequest(
            f"prompt and n ask for {answers} answers, and at most {MAX_ANSWERS} are allowed", param="prompt"
        )
    return request


def turn_request(request: CompletionRequest, ignored: tuple[str, ...] = ()) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have."""
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return TurnRequest(
        id=f"cmpl-{uuid.uuid4().hex}",
        prompts=request.prompts,
        omitted=ignored,
        sampling=request.sampling,
        sampling_fields=sampling_fields(request),
        priority=request.priority or 0,
        # The engine computes at least one token, which `echoes_only` leaves out of the response.
        max_tokens=None if limit == -1 else max(1, limit),
        max_tokens_field="" if request.max_tokens is None else "max_tokens",
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        choices=request.n or 1,
        extension=request.dovetail or Extension(),
    )
