"""A request body as a typed `ChatRequest`, checked once; every refusal names the field.

Fields that no part of Dovetail knows are ignored, as clients and proxies add their own (`user`, `metadata`, `store`).
Fields that would change what the model says and are not supported yet are refused by name: an answer that silently
lacks what was asked for is worse than none. Inside `dovetail`, where every field is ours, unknown ones are refused.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable
from typing import Annotated, Any, Literal

import msgspec

from dovetail.completion import Sampling
from dovetail.conversation import check_messages, check_renderable, check_response_format, check_tools
from dovetail.errors import InvalidRequest
from dovetail.formats.history import KINDS, checked_kinds
from dovetail.formats.tool_choice import Strict, resolve_tool_choice

MAX_STOP_STRINGS = 4
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_StopString = Annotated[str, msgspec.Meta(min_length=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request's `dovetail` field. None: as the server is set up."""

    strict: Strict | None = None
    draft_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    repair: bool | dict[str, Any] | None = None
    return_token_ids: bool | None = None

    def repairs_off(self, by_default: Iterable[str]) -> set[str]:
        """The kinds of repair that are not to be made, where the server leaves off those in `by_default`."""
        if isinstance(self.repair, bool):
            return set() if self.repair else set(KINDS)
        said = self.repair or {}
        return {kind for kind in KINDS if not said.get(kind, kind not in by_default)}


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions.

    `messages`, `tools`, `tool_choice` and `response_format` stay as sent, and are well formed.
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
    # Not supported yet; see _NEUTRAL for the values that ask for nothing.
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
    def extension(self) -> Extension:
        return self.dovetail or Extension()

    @property
    def thinking(self) -> bool:
        """On unless the template's own switch, under either of its names, or `reasoning_effort` turns it off."""
        given = self.chat_template_kwargs or {}
        return all(given.get(name, True) for name in _SWITCHES) and self.reasoning_effort != "none"

    @property
    def structured(self) -> bool:
        """Whether content is held to a response format."""
        return check_response_format(self.response_format) is not None

    @property
    def opens_turn(self) -> bool:
        """Whether the prompt ends in the opening of an answer; by default it does, unless a message is continued."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def template_options(self, declared: Container[str]) -> dict[str, Any]:
        """What is for the template itself: of the request's fields those it declares, and `chat_template_kwargs`."""
        effort = None if self.reasoning_effort == "none" else self.reasoning_effort  # which is what `thinking` says
        choice = self.tool_choice
        if isinstance(choice, dict) and isinstance(allowed := choice.get("allowed_tools"), dict):
            choice = allowed.get("mode")  # templates are older than this shape
        wanted = self.response_format if self.structured else None
        if wanted is not None and wanted["type"] == "json_schema" and wanted["json_schema"].get("schema") is None:
            wanted = {"type": "json_object"}  # which it is, and templates have words for
        fields = {"reasoning_effort": effort, "tool_choice": choice, "response_format": wanted}
        options = {option: value for option, field in FIELD_OF_OPTION.items() if (value := fields[field]) is not None}
        options = {option: value for option, value in options.items() if option in declared}
        given = self.chat_template_kwargs or {}
        return options | {name: value for name, value in given.items() if name not in _SWITCHES or name in declared}

    @property
    def sampling(self) -> Sampling:
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
        """How many of the likeliest tokens are to be told of each place; None: no log probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def max_new_tokens(self) -> tuple[int | None, str]:
        """The request's own bound, and the name of the field that it came from."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"


#: Of each field that is not supported yet: the values that ask for nothing, and what to tell who asks for something.
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
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
    "length_penalty": ((None, 1), "length_penalty is not supported: it is of beam search"),
    "prompt_logprobs": ((None,), "prompt_logprobs are not supported yet"),
    "skip_special_tokens": ((None, True), "skip_special_tokens must be true: dovetail.return_token_ids shows them all"),
    "include_stop_str_in_output": ((None, False), "include_stop_str_in_output is not supported yet"),
    "echo": ((None, False), "echo is not supported"),
    "priority": ((None, 0), "priority is not supported: requests are begun in the order in which they come"),
    "return_token_ids": ((None, False), "return_token_ids is asked for as dovetail.return_token_ids"),
    "prediction": ((None,), "prediction is not supported yet"),
    "audio": ((None,), "audio is not supported"),
    "web_search_options": ((None,), "web_search_options are not supported"),
    "verbosity": ((None, "medium"), "verbosity is not supported"),
}

#: Parameters of `Format.render` that are no options of a template: they have fields of their own, or are not to be set.
_NOT_OPTIONS = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")

_LONGEST_OPTION = 80  # characters of its name

#: A template's options that the request has fields for.
FIELD_OF_OPTION = {
    "reasoning_effort": "reasoning_effort",
    "thinking_effort": "reasoning_effort",
    "tool_choice": "tool_choice",
    "response_format": "response_format",
}

#: Both turn reasoning off: templates have one name or the other.
_SWITCHES = ("thinking", "enable_thinking")

_DECODER = msgspec.json.Decoder(ChatRequest)
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
    for name, (neutral, complaint) in _NEUTRAL.items():
        if (value := getattr(request, name)) not in neutral:
            raise InvalidRequest(f"{complaint} (got {_shown(value)})", param=name)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs are told only where logprobs is true", param="top_logprobs")
    _check_template_kwargs(request.chat_template_kwargs or {})
    if isinstance(request.extension.repair, dict):
        _check_repair(request.extension.repair)
    _check_text_only(check_messages(request.messages))
    check_response_format(request.response_format)
    tools = check_tools(request.tools)
    if not any(message.get("tools") for message in request.messages):  # which the format may show, or not
        resolve_tool_choice(request.tool_choice, tools)
    return request


def _check_surrogates(body: bytes) -> None:
    """Name the field that escapes half a surrogate pair: the decoder only says that something is not JSON."""
    if re.search(rb"(?i)\\ud[89a-f]", body) is None:
        return
    with contextlib.suppress(ValueError, RecursionError):
        decoded = json.loads(body)  # has no objection
        if isinstance(decoded, dict):
            check_renderable(decoded.get("messages"), decoded.get("tools"))
            for name in ChatRequest.__struct_fields__:
                try:
                    json.dumps(decoded.get(name), ensure_ascii=False).encode()
                except UnicodeEncodeError:
                    told = f"{name} holds a lone surrogate, which is not valid Unicode"
                    raise InvalidRequest(told, param=name) from None


def _check_template_kwargs(options: dict[str, Any]) -> None:
    """Other names are for the format to know or refuse."""
    for name in options:
        if name in _NOT_OPTIONS:
            where = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"{where} cannot be set: it is not an option of the template", param=where)
        if len(name) > _LONGEST_OPTION:
            where = f"chat_template_kwargs.{name[:_LONGEST_OPTION]}"
            raise InvalidRequest(f"{where}... is not an option of the template", param=where)
    switches = [(name, options[name]) for name in _SWITCHES if name in options]
    for name, value in switches:
        where = f"chat_template_kwargs.{name}"
        if not isinstance(value, bool):
            raise InvalidRequest(f"{where} must be true or false", param=where)
        if value != switches[0][1]:
            raise InvalidRequest(f"{where} says the opposite of {switches[0][0]}: give one of them", param=where)


def _check_repair(kinds: dict[str, Any]) -> None:
    for kind, on in kinds.items():
        where = f"dovetail.repair.{kind}"[:160]
        try:
            checked_kinds((kind,))
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {error.message}", param=where) from error
        if not isinstance(on, bool):
            raise InvalidRequest(f"{where} must be true or false", param=where)


def _check_text_only(messages: Any) -> None:
    """An engine is given token ids, so a picture in a message could only be dropped; say so instead."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        for j, part in enumerate(content):
            if part["type"] != "text":
                where, kind = f"messages[{i}].content[{j}].type", part["type"]
                raise InvalidRequest(f"{where} must be 'text' (no other is supported), not {kind!r:.80}", param=where)


def _refusal(complaint: str) -> InvalidRequest:
    """msgspec's complaint in OpenAI's words: the path as a field name."""
    path = ""
    if located := _AT.fullmatch(complaint):
        complaint, path = located[1], located[2].split("[...]")[0]  # as far as it has names
    if named := _FIELD.fullmatch(complaint):
        path = f"{path}.{named[1][:80]}" if path else named[1][:80]
        complaint = "is required" if "missing" in complaint else "is not a known field"
        return InvalidRequest(f"{path} {complaint}", param=path)
    subject = path or "the body"
    return InvalidRequest(f"{subject}: {complaint[0].lower()}{complaint[1:]}", param=path or None)


def _shown(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, ValueError, OverflowError, msgspec.MsgspecError):
        return "what JSON cannot write: it is nested too deeply, or a number is too long"
    return text if len(text) <= 60 else f"{text[:57]}..."
