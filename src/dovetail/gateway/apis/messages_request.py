"""The body of Anthropic's Messages API, typed and checked, and the turn that it asks for; errors name the field.

Fields that do not change the answer are ignored: `metadata`, `cache_control`, `service_tier`, `container` and others.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from dovetail.completion import Sampling
from dovetail.conversation import ResponseFormat, check_response_format
from dovetail.errors import InvalidRequest
from dovetail.formats.efforts import effort_of
from dovetail.gateway.apis.messages_history import History
from dovetail.gateway.apis.pictures import Sees, blind
from dovetail.gateway.apis.request_body import (
    Unsupported,
    check_own_fields,
    check_unsupported,
    convert_field,
    decode_body,
)
from dovetail.gateway.turn.tools import typed
from dovetail.gateway.turn.turn_request import Extension, FieldNames, TurnRequest, sampling_fields

#: The edit of the context that keeps all reasoning of the history.
_KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}

MAX_STOP_SEQUENCES = 64
MAX_MESSAGES = 100_000

_StopSequence = Annotated[str, msgspec.Meta(min_length=1)]


class Thinking(msgspec.Struct, frozen=True):
    """`budget_tokens` belongs to "enabled". With the display "omitted", thinking blocks come without their text."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ContextEdits(msgspec.Struct, frozen=True):
    edits: list[dict[str, Any]] = []


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: what the prompt depends on. `tools` and blocks are as sent."""

    model: str
    messages: Annotated[list[Any], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    #: The older place of `output_config.format`.
    output_format: OutputFormat | None = None
    context_management: ContextEdits | None = None
    mcp_servers: list[Any] | None = None
    thread: Any = None
    dovetail: Extension | None = None

    @property
    def context_edits(self) -> list[dict[str, Any]]:
        return self.context_management.edits if self.context_management else []


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stop_sequences: Annotated[list[_StopSequence], msgspec.Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    stream: bool | None = None
    store: Any = None

    @property
    def sampling(self) -> Sampling:
        """How to choose tokens, with Anthropic's defaults."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k if self.top_k is not None and self.top_k > 0 else None,
        )


Checked = TypeVar("Checked", bound=CountTokensRequest)

_UNSUPPORTED: Unsupported = {"thread": ((None,), "thread is not supported: send the whole conversation in messages")}
_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_COUNT_TOKENS = msgspec.json.Decoder(CountTokensRequest)


def decode_messages(body: bytes) -> MessagesRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    return _checked(decode_body(_MESSAGES, body))


def decode_count_tokens(body: bytes) -> CountTokensRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    return _checked(decode_body(_COUNT_TOKENS, body))


def _checked(request: Checked) -> Checked:
    check_unsupported(request, _UNSUPPORTED)
    check_own_fields(None, request.dovetail)
    return request


def turn_request(request: MessagesRequest, ignored: tuple[str, ...] = (), sees: Sees = blind) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have."""
    prompt = prompt_request(request, sees)
    return msgspec.structs.replace(
        prompt,
        omitted=(*ignored, *prompt.omitted),
        sampling=request.sampling,
        sampling_fields=sampling_fields(request),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences or ()),
        stores=request.store is not False,
    )


def prompt_request(request: CountTokensRequest, sees: Sees = blind) -> TurnRequest:
    """As much of the turn as the prompt and the grammar depend on."""
    history, tools = History(request.system, request.messages, sees), MessagesTools(request.tools or ())
    names = FieldNames({**history.names, **tools.names, **_FIELD_NAMES})
    thinking = request.thinking is None or request.thinking.type != "disabled"
    budget = request.thinking.budget_tokens if request.thinking else None
    turn = TurnRequest(
        id=f"msg_{uuid.uuid4().hex}",
        messages=history.messages,
        tools=tools.functions or None,
        tool_choice=openai_choice(request.tool_choice),
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        response_format=_response_format(request),
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
        pictures=tuple(history.pictures.taken),
        omitted=(*history.omitted, *history.pictures.omitted, *tools.omitted, *_omitted(request)),
        field_names=names,
    )
    with names.in_errors():
        return typed(turn)


_FIELD_NAMES = {
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
}


def _response_format(request: CountTokensRequest) -> ResponseFormat | None:
    output_format = (request.output_config and request.output_config.format) or request.output_format
    if output_format is None:
        return None
    nested = {"type": "json_schema", "json_schema": {"name": "output", "schema": output_format.schema}}
    return check_response_format(nested, declared_field="output_config.format")


def _effort(request: CountTokensRequest) -> str | None:
    """The reasoning effort: the request's own, else the effort that its budget of thinking tokens means."""
    if request.output_config is not None and request.output_config.effort is not None:
        return request.output_config.effort
    if request.thinking is None or request.thinking.budget_tokens is None:
        return None
    return effort_of(request.thinking.budget_tokens)


def _omitted(request: CountTokensRequest) -> list[str]:
    """The fields outside of messages and tools that are left out."""
    edits = enumerate(request.context_edits)
    omitted = [f"context_management.edits[{i}]" for i, edit in edits if edit != _KEEPS_THINKING]
    return omitted + (["mcp_servers"] if request.mcp_servers else [])


#: The tools whose schemas or whose work are Anthropic's own: a word and a date.
_OWN_TOOL = re.compile(r"\w+_\d{8}|mcp_toolset")


class AnthropicTool(msgspec.Struct, frozen=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    input_examples: Any = None


class MessagesTools:
    """The tools of one request.

    `functions`: those that the client runs, in OpenAI's shape.
    `names`: the client's name for each of their fields that an error may name.
    `omitted`: the fields that were left out: tools that only Anthropic's servers have, and examples.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.omitted: list[str] = []
        for i, tool in enumerate(tools):
            self._add(tool, f"tools[{i}]")

    def _add(self, tool: Any, field: str) -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and _OWN_TOOL.fullmatch(kind):
            self.omitted.append(field)
            return
        if kind not in (None, "custom"):
            raise InvalidRequest(f'{field}.type must be "custom" or absent, not {kind!r:.80}', param=f"{field}.type")
        declared = convert_field(tool, AnthropicTool, field)
        if declared.input_examples:
            self.omitted.append(f"{field}.input_examples")
        place = f"tools[{len(self.functions)}]"
        self.names |= {
            place: field,
            f"{place}.function": field,
            f"{place}.function.parameters": f"{field}.input_schema",
        }
        # In the order of OpenAI's API, because many templates write a tool as the JSON that they get.
        function = {
            "name": declared.name,
            "description": declared.description,
            "parameters": declared.input_schema,
            "strict": declared.strict,
        }
        function = {key: value for key, value in function.items() if value is not None}
        self.functions.append({"type": "function", "function": function})


def openai_choice(choice: ToolChoice | None) -> Any:
    """`choice` in OpenAI's shape."""
    if choice is None:
        return None
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if not choice.name:
        raise InvalidRequest('tool_choice.name is required with the type "tool"', param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}
