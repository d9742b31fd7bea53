"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API as turns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.conversation import check_response_format
from dovetail.gateway.apis import messages_response
from dovetail.gateway.apis.messages_history import History
from dovetail.gateway.apis.messages_request import (
    CountTokensRequest,
    MessagesRequest,
    decode_count_tokens,
    decode_messages,
)
from dovetail.gateway.apis.messages_tools import Tools, openai_choice
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.http.query_endpoint import Reply
from dovetail.gateway.turn.field_names import FieldNames
from dovetail.gateway.turn.fixed_sampling import sampling_fields
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.tool_names import check_tool_choice
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import Extension, TurnRequest

#: The effort that a budget of thinking tokens asks for: the first one whose budget is not less.
_EFFORTS = {"low": 2_048, "medium": 8_192, "high": 32_768}

#: The edit of the context that keeps all reasoning of the history.
_KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}


class Messages:
    """One message: its request as a turn, and the steps of that turn as its response.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes) -> None:
        self._request = decode_messages(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, MessagesRequest))
        self._record = ""

    @property
    def concludes(self) -> bool:
        """Whether the client returns thinking."""
        return self._request.thinking is not None and bool(self.turn_request.thinking)

    def conclude(self, turn: Turn, steps: Sequence[Step]) -> None:
        """Make the record of an answer with calls.

        An answer of mere text has none: some clients take the last block of an answer for its text.
        """
        if steps[-1].finish == "tool_calls":
            self._record = turn.record(0, [token for step in steps for token in step.ids])

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        return messages_response.whole(self._request, turn, steps, lambda: self._record)

    def stream(self, turn: Turn) -> messages_response.Stream:
        return messages_response.Stream(self._request, turn, lambda: self._record)


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class CountTokens:
    """The number of tokens that the prompt of a message would have."""

    def __init__(self, body: bytes) -> None:
        request = decode_count_tokens(body)
        self.model = request.model
        self._prompt_request = prompt_request(request)

    def reply(self, runner: TurnRunner) -> Reply:
        rendered = runner.render(self._prompt_request)
        return Reply(msgspec.json.encode(TokenCount(len(rendered.ids))), rendered)


def turn_request(request: MessagesRequest, ignored: tuple[str, ...] = ()) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have."""
    prompt = prompt_request(request)
    return msgspec.structs.replace(
        prompt,
        omitted=(*ignored, *prompt.omitted),
        sampling=request.sampling,
        sampling_fields=sampling_fields(request),
        max_tokens=request.max_tokens,
        fit_max_tokens=True,
        stop=tuple(request.stop_sequences or ()),
    )


def prompt_request(request: CountTokensRequest) -> TurnRequest:
    """As much of the turn as the prompt and the grammar depend on."""
    history, tools = History(request.system, request.messages), Tools(request.tools or ())
    choice, response_format = openai_choice(request.tool_choice), _response_format(request)
    names = FieldNames({**history.names, **tools.names, **_FIELD_NAMES})
    with names.in_errors():
        check_tool_choice(choice, tools.functions, history.messages)
        check_response_format(response_format)
    thinking = request.thinking is None or request.thinking.type != "disabled"
    budget = request.thinking.budget_tokens if request.thinking else None
    return TurnRequest(
        id=f"msg_{uuid.uuid4().hex}",
        messages=history.messages,
        tools=tools.functions or None,
        tool_choice=choice,
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        response_format=response_format,
        thinking=thinking,
        reasoning_effort=_effort(request) if thinking else None,
        fit_reasoning_effort=True,
        reasoning_budget=budget,
        reasoning_budget_field="thinking.budget_tokens" if budget else "",
        keep_reasoning=_KEEPS_THINKING in request.context_edits,
        add_generation_prompt=not history.prefilled,
        continue_final_message=history.prefilled,
        signed=tuple(history.signed),
        extension=request.dovetail or Extension(),
        omitted=(*history.omitted, *tools.omitted, *_omitted(request)),
        field_names=names,
    )


_FIELD_NAMES = {
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
}


def _response_format(request: CountTokensRequest) -> Mapping[str, Any] | None:
    output_format = (request.output_config and request.output_config.format) or request.output_format
    if output_format is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": output_format.schema}}


def _effort(request: CountTokensRequest) -> str | None:
    """The reasoning effort: the request's own, else that of its budget of thinking tokens."""
    if request.output_config is not None and request.output_config.effort is not None:
        return request.output_config.effort
    if request.thinking is None or request.thinking.budget_tokens is None:
        return None
    budget = request.thinking.budget_tokens
    return next((effort for effort, most in _EFFORTS.items() if budget <= most), "max")


def _omitted(request: CountTokensRequest) -> list[str]:
    """The fields outside of messages and tools that are left out."""
    edits = enumerate(request.context_edits)
    omitted = [f"context_management.edits[{i}]" for i, edit in edits if edit != _KEEPS_THINKING]
    return omitted + (["mcp_servers"] if request.mcp_servers else [])
