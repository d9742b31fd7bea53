"""`POST /v1/chat/completions`: OpenAI's chat completions as turns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dovetail.gateway.apis import chat_response
from dovetail.gateway.apis.chat_request import ChatRequest, decode
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.turn.fixed_sampling import sampling_fields
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import Extension, TurnRequest


class ChatCompletion:
    """One chat completion: its request as a turn, and the steps of that turn as its response.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes) -> None:
        self._request = decode(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, ChatRequest))

    @property
    def concludes(self) -> bool:
        """Whether the request asks for records of the answers."""
        return bool(self.turn_request.extension.record)

    def conclude(self, turn: Turn, steps: Sequence[Step]) -> None:
        """Make the records of the answers."""
        for choice in range(self.turn_request.choices):
            turn.record(choice, [token for step in steps if step.choice == choice for token in step.ids])

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        return chat_response.whole(self._request, turn, steps)

    def stream(self, turn: Turn) -> chat_response.Stream:
        return chat_response.Stream(self._request, turn)


def turn_request(request: ChatRequest, ignored: tuple[str, ...] = ()) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have."""
    max_tokens, max_tokens_field = request.max_new_tokens
    switches = request.switches
    budget, budget_field = switches.budget
    return TurnRequest(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        response_format=request.nested_format,
        thinking=switches.on,
        reasoning_effort=switches.effort,
        reasoning_budget=budget,
        reasoning_budget_field=budget_field,
        verbosity=request.verbosity,
        keep_reasoning=switches.keep,
        chat_template_kwargs=switches.options,
        add_generation_prompt=request.opens_answer,
        continue_final_message=bool(request.continue_final_message),
        sampling=request.sampling,
        sampling_fields=sampling_fields(request),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        omitted=(*ignored, *switches.omitted),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=request.likeliest,
        choices=request.n or 1,
        field_names=request.field_names,
        extension=request.dovetail or Extension(),
    )
