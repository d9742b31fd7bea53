"""`POST /v1/chat/completions`: OpenAI's chat completions as turns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dovetail.gateway.apis import chat_response
from dovetail.gateway.apis.chat_request import ChatRequest, decode
from dovetail.gateway.output import Step
from dovetail.gateway.turn import Turn
from dovetail.gateway.turn_request import Extension, TurnRequest


class ChatCompletion:
    """One chat completion: its request as a turn, and the steps of that turn as its response.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes) -> None:
        self._request = decode(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request)

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        return chat_response.whole(self._request, turn, steps)

    def stream(self, turn: Turn) -> chat_response.Stream:
        return chat_response.Stream(self._request, turn)


def turn_request(request: ChatRequest) -> TurnRequest:
    """The turn that `request` asks for, under a new id."""
    max_tokens, max_tokens_field = request.max_new_tokens
    return TurnRequest(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        response_format=request.response_format,
        thinking=request.thinking,
        reasoning_effort=request.reasoning_effort,
        chat_template_kwargs=request.chat_template_kwargs or {},
        add_generation_prompt=request.opens_answer,
        continue_final_message=bool(request.continue_final_message),
        sampling=request.sampling,
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        stop=request.stop_strings,
        logprobs=request.likeliest,
        choices=request.n or 1,
        extension=request.dovetail or Extension(),
    )
