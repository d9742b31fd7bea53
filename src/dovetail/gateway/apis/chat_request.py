"""The body of a chat completion, typed and checked, and the turn that it asks for; every error names the field.

Unknown fields are ignored, because clients and proxies add their own (`user`, `metadata`, `store`). Known fields that
would change the answer and are not supported are refused by name: a wrong answer without a word is worse than an error.
In `dovetail`, where every field is Dovetail's own, unknown fields are refused too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from dovetail.conversation import ResponseFormat, check_messages, check_response_format
from dovetail.errors import InvalidRequest
from dovetail.gateway.apis.pictures import Pictures, Sees, blind
from dovetail.gateway.apis.request_body import (
    UNSUPPORTED,
    Budget,
    Effort,
    Limit,
    ReasoningField,
    ReasoningSwitches,
    SamplingRequest,
    ThinkingField,
    Unsupported,
    check_own_fields,
    check_unsupported,
    decode_body,
)
from dovetail.gateway.turn.tools import typed
from dovetail.gateway.turn.turn_request import Extension, TurnRequest, sampling_fields

MAX_TOP_LOGPROBS = 20


class ChatRequest(SamplingRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`.

    `messages`, `tools`, `tool_choice` and `response_format` are as sent, and `messages` are well formed.
    """

    messages: Any
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: Effort | None = None
    thinking: ThinkingField | bool | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningField | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    store: Any = None
    dovetail: Extension | None = None
    # Not supported: refused unless they have one of the values in `_UNSUPPORTED`.
    modalities: Any = None
    functions: Any = None
    function_call: Any = None
    best_of: Any = None
    skip_special_tokens: Any = None
    echo: Any = None
    prediction: Any = None
    audio: Any = None
    chat_template: Any = None
    documents: Any = None

    @property
    def switches(self) -> ReasoningSwitches:
        """The fields about reasoning."""
        field = self.thinking
        if isinstance(field, bool):
            field = ThinkingField("enabled" if field else "disabled")
        return ReasoningSwitches(
            self.chat_template_kwargs or {},
            self.reasoning_effort,
            field,
            self.enable_thinking,
            self.reasoning,
            self.thinking_token_budget,
            self.thinking_budget,
        )

    @property
    def choice(self) -> Any:
        """`tool_choice`, in which "any" is another word for "required"."""
        return "required" if self.tool_choice == "any" else self.tool_choice

    @property
    def checked_format(self) -> ResponseFormat | None:
        """`response_format`, with a schema that is directly in it at OpenAI's place."""
        shape = self.response_format
        is_flat = (
            isinstance(shape, dict)
            and shape.get("type") in ("json_schema", "json_object")
            and shape.get("schema") is not None
            and shape.get("json_schema") is None
        )
        if not is_flat:
            return check_response_format(shape)
        rest = {field: shape[field] for field in ("schema", "strict", "description") if field in shape}
        nested = {"type": "json_schema", "json_schema": {"name": shape.get("name") or "answer", **rest}}
        return check_response_format(nested, declared_field="response_format")

    @property
    def opens_answer(self) -> bool:
        """Whether the prompt ends with the opening of an answer: by default, unless the last message is continued."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to report at each place; None: no log probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def max_new_tokens(self) -> tuple[int | None, str]:
        """The request's limit on new tokens, and the name of its field."""
        field = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        limit = getattr(self, field)
        return None if limit == -1 else limit, field


_UNSUPPORTED: Unsupported = UNSUPPORTED | {
    "modalities": ((None, ["text"]), 'modalities must be ["text"]'),
    "functions": ((None, []), "functions is the deprecated name: use tools"),
    "function_call": ((None,), "function_call is the deprecated name: use tool_choice"),
    "best_of": ((None, 1), "best_of is not supported: use n"),
    "skip_special_tokens": (
        (None, True),
        "skip_special_tokens must be true: dovetail.return_token_ids shows every token",
    ),
    "echo": ((None, False), "echo is not supported"),
    "prediction": ((None,), "prediction is not supported yet"),
    "audio": ((None,), "audio is not supported"),
    "chat_template": ((None,), "chat_template is not supported: serve the model with the template"),
    "documents": ((None, []), "documents are not supported: put them into a message"),
}

_DECODER = msgspec.json.Decoder(ChatRequest)


def decode(body: bytes) -> ChatRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    request = decode_body(_DECODER, body)
    check(request)
    return request


def check(request: ChatRequest) -> None:
    """Raise `InvalidRequest` for what the types of the fields do not say, naming the field. `turn_request` looks at
    the tools and the response format."""
    check_unsupported(request, _UNSUPPORTED)
    for field in ("max_tokens", "max_completion_tokens"):
        if getattr(request, field) == 0:
            raise InvalidRequest(f"{field} must be at least 1, or -1 for no limit", param=field)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    check_own_fields(request.chat_template_kwargs, request.dovetail)
    request.switches.check()
    check_messages(request.messages)


def _shown(messages: Sequence[Mapping[str, Any]], sees: Sees) -> tuple[list[Mapping[str, Any]], Pictures | None]:
    """`messages` with parts that are text or pictures, and the pictures; None if every part is text.

    Raises `InvalidRequest` for a part that the model can read nothing of.
    """
    shown: list[Mapping[str, Any]] = []
    found: Pictures | None = None
    for i, message in enumerate(messages):
        content = message.get("content")
        if content is not None and not isinstance(content, str) and any(part["type"] != "text" for part in content):
            found = found or Pictures(sees)
            parts = [_part(part, f"messages[{i}].content[{j}]", found) for j, part in enumerate(content)]
            message = {**message, "content": parts}
        shown.append(message)
    return shown, found


def _part(part: Mapping[str, Any], field: str, found: Pictures) -> Mapping[str, Any]:
    kind = part["type"]
    if kind == "text":
        return part
    if kind == "refusal":
        if not isinstance(part.get("refusal"), str):
            raise InvalidRequest(f"{field}.refusal must be a string", param=f"{field}.refusal")
        return {"type": "text", "text": part["refusal"]}
    shown = found.part(part, field)
    if shown is None:
        message = f"{field}.type must be text, refusal or a picture (no other is supported), not {kind!r:.80}"
        raise InvalidRequest(message, param=f"{field}.type")
    return shown


def turn_request(request: ChatRequest, ignored: tuple[str, ...] = (), sees: Sees = blind) -> TurnRequest:
    """The turn that `request` asks for, under a new id. `ignored` are the fields of its body that it does not have.

    Raises `InvalidRequest` naming the field for parts of messages that no text can stand for, and for tools, a choice
    of them or a response format that is not well formed.
    """
    messages, found = _shown(request.messages, sees)
    max_tokens, max_tokens_field = request.max_new_tokens
    switches = request.switches
    budget, budget_field = switches.budget
    turn = TurnRequest(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        messages=messages,
        tools=request.tools,
        tool_choice=request.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        response_format=request.checked_format,
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
        priority=request.priority or 0,
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        omitted=(*ignored, *switches.omitted, *(found.omitted if found else ())),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=request.likeliest,
        choices=request.n or 1,
        extension=request.dovetail or Extension(),
        pictures=tuple(found.taken) if found else (),
        stores=request.store is not False,
    )
    return typed(turn)
