"""The body of a chat completion as a typed `ChatRequest`, checked once; every error names the field.

Unknown fields are ignored, because clients and proxies add their own (`user`, `metadata`, `store`). Known fields that
would change the answer and are not supported are refused by name: a wrong answer without a word is worse than an error.
In `dovetail`, where every field is Dovetail's own, unknown fields are refused too.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Annotated, Any, Literal

import msgspec

from dovetail.completion import Sampling
from dovetail.conversation import check_messages, check_renderable, check_response_format, check_tools
from dovetail.errors import InvalidRequest
from dovetail.formats.history import checked_kinds
from dovetail.formats.tool_choice import resolve_tool_choice
from dovetail.gateway.turn_request import THINKING_OPTIONS, Extension

MAX_STOP_STRINGS = 4
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_StopString = Annotated[str, msgspec.Meta(min_length=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`.

    `messages`, `tools`, `tool_choice` and `response_format` are as sent, and well formed.
    """

    model: str
    messages: Any
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _StopString | Annotated[list[_StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    dovetail: Extension | None = None
    # Not supported: refused unless they have one of the values in `_UNSUPPORTED`.
    logit_bias: Any = None
    modalities: Any = None
    functions: Any = None
    function_call: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    prompt_logprobs: Any = None
    skip_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    echo: Any = None
    priority: Any = None
    return_token_ids: Any = None
    prediction: Any = None
    audio: Any = None
    web_search_options: Any = None
    verbosity: Any = None

    @property
    def thinking(self) -> bool:
        """Whether the model may reason: yes, unless a template option or `reasoning_effort` turns it off."""
        options = self.chat_template_kwargs or {}
        return all(options.get(name, True) for name in THINKING_OPTIONS) and self.reasoning_effort != "none"

    @property
    def opens_answer(self) -> bool:
        """Whether the prompt ends with the opening of an answer: by default, unless the last message is continued."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def sampling(self) -> Sampling:
        """How to choose tokens, with OpenAI's defaults."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k if self.top_k is not None and self.top_k > 0 else None,
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=self.seed,
        )

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to report at each place; None: no log probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end the answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def max_new_tokens(self) -> tuple[int | None, str]:
        """The request's limit on new tokens, and the name of its field."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"


#: Unsupported field -> the values that change nothing and are accepted, and the error for any other value.
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "logit_bias": ((None, {}), "logit_bias is not supported yet"),
    "modalities": ((None, ["text"]), 'modalities must be ["text"]'),
    "functions": ((None, []), "functions is the deprecated name: use tools"),
    "function_call": ((None,), "function_call is the deprecated name: use tool_choice"),
    "structured_outputs": ((None, {}), "structured_outputs are not supported yet"),
    "guided_json": ((None,), "guided_json is not supported yet"),
    "guided_regex": ((None,), "guided_regex is not supported yet"),
    "guided_choice": ((None,), "guided_choice is not supported yet"),
    "guided_grammar": ((None,), "guided_grammar is not supported yet"),
    "min_tokens": ((None, 0), "min_tokens is not supported yet"),
    "ignore_eos": ((None, False), "ignore_eos is not supported"),
    "stop_token_ids": ((None, []), "stop_token_ids are not supported yet: use stop"),
    "bad_words": ((None, []), "bad_words are not supported yet"),
    "allowed_token_ids": ((None,), "allowed_token_ids are not supported yet"),
    "best_of": ((None, 1), "best_of is not supported: use n"),
    "use_beam_search": ((None, False), "use_beam_search is not supported"),
    "length_penalty": ((None, 1), "length_penalty is not supported: it belongs to beam search"),
    "prompt_logprobs": ((None,), "prompt_logprobs are not supported yet"),
    "skip_special_tokens": (
        (None, True),
        "skip_special_tokens must be true: dovetail.return_token_ids shows every token",
    ),
    "include_stop_str_in_output": ((None, False), "include_stop_str_in_output is not supported yet"),
    "echo": ((None, False), "echo is not supported"),
    "priority": ((None, 0), "priority is not supported: requests start in the order of arrival"),
    "return_token_ids": ((None, False), "return_token_ids is not supported: use dovetail.return_token_ids"),
    "prediction": ((None,), "prediction is not supported yet"),
    "audio": ((None,), "audio is not supported"),
    "web_search_options": ((None,), "web_search_options are not supported"),
    "verbosity": ((None, "medium"), "verbosity is not supported"),
}

#: Parameters of `Format.render` that are not template options: they have fields of their own, or cannot be set.
_NOT_OPTIONS = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")

_LONGEST_OPTION = 80  # characters of an option's name

_DECODER = msgspec.json.Decoder(ChatRequest)
#: msgspec's error texts: a complaint and the path of the value; a missing or unknown field.
_AT = re.compile(r"(?s)(.*) - at `(?:key in )?\$\.?(.*)`")
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`")


def decode(body: bytes) -> ChatRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    try:
        request = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _check_surrogates(body)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body's JSON is nested too deeply") from error
    for name, (accepted, complaint) in _UNSUPPORTED.items():
        if (value := getattr(request, name)) not in accepted:
            raise InvalidRequest(f"{complaint} (got {_excerpt(value)})", param=name)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    _check_template_kwargs(request.chat_template_kwargs or {})
    if request.dovetail is not None and isinstance(request.dovetail.repair, dict):
        _check_repair(request.dovetail.repair)
    _check_text_only(check_messages(request.messages))
    check_response_format(request.response_format)
    tools = check_tools(request.tools)
    # A message may declare the chosen tool, if the format shows such tools; `TurnRunner.prepare` checks that.
    if not any(message.get("tools") for message in request.messages):
        resolve_tool_choice(request.tool_choice, tools)
    return request


def _check_surrogates(body: bytes) -> None:
    """Raise `InvalidRequest` that names the field with a lone surrogate, for which the decoder's error has no path."""
    if re.search(rb"(?i)\\ud[89a-f]", body) is None:
        return
    with contextlib.suppress(ValueError, RecursionError):
        decoded = json.loads(body)  # accepts lone surrogates
        if isinstance(decoded, dict):
            check_renderable(decoded.get("messages"), decoded.get("tools"))
            for name in ChatRequest.__struct_fields__:
                try:
                    json.dumps(decoded.get(name), ensure_ascii=False).encode()
                except UnicodeEncodeError:
                    message = f"{name} contains a lone surrogate, which is not valid Unicode"
                    raise InvalidRequest(message, param=name) from None


def _check_template_kwargs(options: dict[str, Any]) -> None:
    """Refuse options that no template can have. The format refuses the others that it does not know."""
    for name in options:
        field = f"chat_template_kwargs.{name[:_LONGEST_OPTION]}"
        if name in _NOT_OPTIONS:
            raise InvalidRequest(f"{field} cannot be set: it is not an option of the template", param=field)
        if len(name) > _LONGEST_OPTION:
            raise InvalidRequest(f"{field}... is not an option of the template", param=field)
    thinking = [(name, options[name]) for name in THINKING_OPTIONS if name in options]
    for name, value in thinking:
        field = f"chat_template_kwargs.{name}"
        if not isinstance(value, bool):
            raise InvalidRequest(f"{field} must be true or false", param=field)
        if value != thinking[0][1]:
            raise InvalidRequest(f"{field} contradicts {thinking[0][0]}: set only one of them", param=field)


def _check_repair(kinds: dict[str, Any]) -> None:
    for kind, on in kinds.items():
        field = f"dovetail.repair.{kind}"[:160]
        try:
            checked_kinds((kind,))
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error.message}", param=field) from error
        if not isinstance(on, bool):
            raise InvalidRequest(f"{field} must be true or false", param=field)


def _check_text_only(messages: Any) -> None:
    """Refuse images and other parts: the engine gets token ids, so they could only be dropped."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        for j, part in enumerate(content):
            if part["type"] != "text":
                field, kind = f"messages[{i}].content[{j}].type", part["type"]
                raise InvalidRequest(f"{field} must be 'text' (no other is supported), not {kind!r:.80}", param=field)


def _refusal(complaint: str) -> InvalidRequest:
    """The error for msgspec's `complaint`, with its path as a field name."""
    path = ""
    if located := _AT.fullmatch(complaint):
        complaint, path = located[1], located[2].split("[...]")[0]  # the part without unknown indices
    if named := _FIELD.fullmatch(complaint):
        path = f"{path}.{named[1][:80]}" if path else named[1][:80]
        complaint = "is required" if "missing" in complaint else "is not a known field"
        return InvalidRequest(f"{path} {complaint}", param=path)
    subject = path or "the body"
    return InvalidRequest(f"{subject}: {complaint[0].lower()}{complaint[1:]}", param=path or None)


def _excerpt(value: Any) -> str:
    """The beginning of `value` as JSON."""
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, ValueError, OverflowError, msgspec.MsgspecError):
        return "a value that is nested too deeply or has too long a number"
    return text if len(text) <= 60 else f"{text[:57]}..."
