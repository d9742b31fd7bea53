"""`POST /v1/completions`: OpenAI's completions as turns with raw prompts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dovetail.gateway.apis import completion_response
from dovetail.gateway.apis.completion_request import DEFAULT_MAX_TOKENS, CompletionRequest, decode
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.turn.fixed_sampling import sampling_fields
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import Extension, TurnRequest


class RawCompletion:
    """One request for completions, with one or several prompts.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes) -> None:
        self._request = decode(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, CompletionRequest))

    @property
    def concludes(self) -> bool:
        """A completion has no record and is not stored."""
        return False

    def conclude(self, turn: Turn, steps: Sequence[Step]) -> None:
        """Nothing."""

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        return completion_response.whole(self._request, turn, steps)

    def stream(self, turn: Turn) -> completion_response.Stream:
        return completion_response.Stream(self._request, turn)


def turn_request(request: CompletionRequest, ignored: tuple[str, ...] = ()) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have."""
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return TurnRequest(
        id=f"cmpl-{uuid.uuid4().hex}",
        prompts=request.prompts,
        omitted=ignored,
        sampling=request.sampling,
        sampling_fields=sampling_fields(request),
        # The engine computes at least one token, which `echoes_only` leaves out of the response.
        max_tokens=None if limit == -1 else max(1, limit),
        fit_max_tokens=request.max_tokens is None,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        choices=request.n or 1,
        extension=request.dovetail or Extension(),
    )
