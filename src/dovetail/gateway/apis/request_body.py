"""Bodies of requests as typed requests, and the fields that several APIs have. Every error names the field at fault.

Of the fields about reasoning, `reasoning_effort` is OpenAI's, `thinking` is Moonshot's, DeepSeek's and Z.ai's,
`enable_thinking` is Qwen's, and `reasoning` is OpenRouter's. A budget is in `thinking`, in `reasoning`, in vLLM's
`thinking_token_budget` or in Qwen's `thinking_budget`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from dovetail.completion import Sampling
from dovetail.conversation import check_json
from dovetail.errors import InvalidRequest
from dovetail.formats.prompts.history import checked_kinds
from dovetail.gateway.turn.turn_request import THINKING_OPTIONS, Extension

Request = TypeVar("Request", bound=msgspec.Struct)
Part = TypeVar("Part")

#: Unsupported field -> the values that change nothing and are accepted, and the error for any other value.
Unsupported = dict[str, tuple[tuple[Any, ...], str]]

#: msgspec's error texts: a complaint and the path of the value; a missing or unknown field.
_AT = re.compile(r"(?s)(.*) - at (?:`key` in )?`(?:key in )?\$\.?(.*)`")
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`")

#: Parameters of `Format.render` that are not template options: they have fields of their own, or cannot be set.
_NOT_OPTIONS = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")

#: Fields that say who asks, how it is billed, what is stored or cached elsewhere. They never change an answer, so it
#: is not worth a word that they are ignored.
_HARMLESS = frozenset(
    {
        *("user", "metadata", "client_metadata", "session_id", "request_id"),
        *("safety_identifier", "user_profile_id", "workspace_id"),
        *("store", "service_tier", "betas", "diagnostics", "stream_options"),
        *("cache_control", "cache_salt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_LONGEST_OPTION = 80  # characters of an option's name


def decode_body(decoder: msgspec.json.Decoder[Request], body: bytes) -> Request:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _check_surrogates(decoder, body)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body's JSON is nested too deeply") from error


def ignored_fields(body: bytes, kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of `body` that a `kind` does not have: a field of another server, or one that is misspelled.

    Without those that never change an answer, and those that are null. `body` has been decoded as a `kind`.
    """
    known = _HARMLESS.union(kind.__struct_fields__)
    return tuple(
        field for field, value in _FIELDS.decode(body).items() if field not in known and bytes(value) != b"null"
    )


def convert_field(value: Any, kind: type[Part], field: str) -> Part:
    """`value`, which `field` of a decoded body has, as a `kind`. Raises `InvalidRequest` naming the field at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), field) from error


def check_unsupported(request: msgspec.Struct, unsupported: Unsupported) -> None:
    """Raise `InvalidRequest` for an unsupported field whose value would change the answer."""
    for name, (accepted, complaint) in unsupported.items():
        if (value := getattr(request, name)) not in accepted:
            raise InvalidRequest(f"{complaint} (got {_excerpt(value)})", param=name)


def check_own_fields(options: dict[str, Any] | None, extension: Extension | None) -> None:
    """Raise `InvalidRequest` for a fault in `chat_template_kwargs` or `dovetail`, which every API has."""
    _check_template_kwargs(options or {})
    if extension is not None and isinstance(extension.repair, dict):
        _check_repair(extension.repair)


def _check_template_kwargs(options: dict[str, Any]) -> None:
    """Refuse options that no template can have. Others that the model's template does not have are left out."""
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


def _check_surrogates(decoder: msgspec.json.Decoder[Any], body: bytes) -> None:
    """Raise `InvalidRequest` that names the field with a lone surrogate, for which the decoder's error has no path."""
    if re.search(rb"(?i)\\ud[89a-f]", body) is None:
        return
    with contextlib.suppress(ValueError, RecursionError):
        decoded = json.loads(body)  # accepts lone surrogates
        if isinstance(decoded, dict):
            for name in decoder.type.__struct_fields__:
                check_json(decoded.get(name), name)


def _refusal(complaint: str, path: str = "") -> InvalidRequest:
    """The error for msgspec's `complaint` about the value at `path`, with the rest of the path as in the complaint."""
    if located := _AT.fullmatch(complaint):
        complaint, inner = located[1], located[2].split("[...]")[0]  # the part without unknown indices
        path += f".{inner}" if path and inner[:1] not in ("", "[") else inner
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


MAX_STOP_STRINGS = 4
MAX_CHOICES = 16
MAX_BIASES = 1024
MAX_STOP_TOKENS = 128

#: -1 is no limit, as some clients write it.
Limit = Annotated[int, msgspec.Meta(ge=-1)]
Token = Annotated[int, msgspec.Meta(ge=0)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens, as chat completions, completions and Responses declare it."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None

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


class SamplingRequest(SamplingFields, frozen=True, kw_only=True):
    """The fields of chat completions and completions, with OpenAI's ranges.

    `UNSUPPORTED` has the values that the last ones may have.
    """

    model: str
    max_tokens: Limit | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Token], msgspec.Meta(max_length=MAX_STOP_TOKENS)] | None = None
    logit_bias: (
        Annotated[dict[Token, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=MAX_BIASES)]
        | None
    ) = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    # Not supported.
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    prompt_logprobs: Any = None
    include_stop_str_in_output: Any = None
    truncate_prompt_tokens: Any = None
    typical_p: Any = None
    repeat_penalty: Any = None

    @property
    def sampling(self) -> Sampling:
        return replace(super().sampling, logit_bias=self.logit_bias or {})

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end the answer. Empty ones, which some clients send for none, are left out."""
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(filter(None, strings))


#: The fields that are not supported.
UNSUPPORTED: Unsupported = {
    "structured_outputs": ((None, {}), "structured_outputs are not supported yet"),
    "guided_json": ((None,), "guided_json is not supported yet"),
    "guided_regex": ((None,), "guided_regex is not supported yet"),
    "guided_choice": ((None,), "guided_choice is not supported yet"),
    "guided_grammar": ((None,), "guided_grammar is not supported yet"),
    "bad_words": ((None, []), "bad_words are not supported yet"),
    "allowed_token_ids": ((None,), "allowed_token_ids are not supported yet"),
    "use_beam_search": ((None, False), "use_beam_search is not supported"),
    "length_penalty": ((None, 1), "length_penalty is not supported: it belongs to beam search"),
    "prompt_logprobs": ((None,), "prompt_logprobs are not supported yet"),
    "include_stop_str_in_output": ((None, False), "include_stop_str_in_output is not supported yet"),
    "truncate_prompt_tokens": ((None, -1), "truncate_prompt_tokens is not supported: shorten the prompt"),
    "typical_p": ((None, 1), "typical_p is not supported: use top_p or min_p"),
    "repeat_penalty": ((None, 1), "repeat_penalty is not supported: use repetition_penalty"),
}


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

#: The most tokens of reasoning; -1 is no limit.
Budget = Annotated[int, msgspec.Meta(ge=-1)]


class ThinkingField(msgspec.Struct, frozen=True):
    """The field `thinking`. `keep: "all"` asks for the reasoning of earlier turns."""

    type: Literal["enabled", "disabled", "adaptive", "auto"] | None = None
    effort: Effort | None = None
    keep: Literal["all"] | None = None
    budget_tokens: Budget | None = None


class ReasoningField(msgspec.Struct, frozen=True):
    """The field `reasoning`."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Budget | None = None


class ReasoningSwitches(msgspec.Struct, frozen=True):
    """The fields of one request about reasoning, as one switch, one effort and one budget.

    `options` are its `chat_template_kwargs`.
    """

    options: Mapping[str, Any]
    reasoning_effort: Effort | None
    thinking: ThinkingField | None
    enable_thinking: bool | None
    reasoning: ReasoningField | None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None

    @property
    def on(self) -> bool:
        """Whether the model may reason: yes, unless a field turns it off."""
        return all(on for _, on in self._switches()) and self.effort != "none"

    @property
    def effort(self) -> Effort | None:
        """The effort that counts."""
        return next((effort for _, effort in self._efforts()), None)

    @property
    def keep(self) -> bool:
        """Whether the prompt is to show the reasoning of earlier turns."""
        return self.thinking is not None and self.thinking.keep == "all"

    @property
    def budget(self) -> tuple[int | None, str]:
        """The most tokens of reasoning, None for any number, and the name of the field that says so."""
        field, limit = next(self._budgets(), ("", None))
        return None if limit == -1 else limit, field

    @property
    def omitted(self) -> tuple[str, ...]:
        """The fields that have no effect: an effort and a budget beside another one."""
        efforts = (field for field, effort in self._efforts() if effort != self.effort)
        first = next((limit for _, limit in self._budgets()), None)
        budgets = (field for field, limit in self._budgets() if limit != first)
        return (*efforts, *budgets)

    def check(self) -> None:
        """Raise `InvalidRequest` that names the field, for a switch that contradicts another or is not supported."""
        if self.reasoning is not None and self.reasoning.exclude:
            message = "reasoning.exclude is not supported: reasoning_content has the reasoning, and content has none"
            raise InvalidRequest(message, param="reasoning.exclude")
        switches = [*self._switches()]
        if self.effort == "none":
            field, _ = next(self._efforts())
            switches.append((field, False))
        for field, on in switches[1:]:
            if on != switches[0][1]:
                raise InvalidRequest(f"{field} contradicts {switches[0][0]}: set only one of them", param=field)

    def _switches(self) -> Iterator[tuple[str, bool]]:
        for name in THINKING_OPTIONS:
            if name in self.options:
                yield f"chat_template_kwargs.{name}", self.options[name]
        if self.enable_thinking is not None:
            yield "enable_thinking", self.enable_thinking
        if self.thinking is not None and self.thinking.type is not None:
            yield "thinking.type", self.thinking.type != "disabled"
        if self.reasoning is not None and self.reasoning.enabled is not None:
            yield "reasoning.enabled", self.reasoning.enabled

    def _efforts(self) -> Iterator[tuple[str, Effort]]:
        """Every effort; the first counts, as in Moonshot's API."""
        if self.thinking is not None and self.thinking.effort is not None:
            yield "thinking.effort", self.thinking.effort
        if self.reasoning is not None and self.reasoning.effort is not None:
            yield "reasoning.effort", self.reasoning.effort
        if self.reasoning_effort is not None:
            yield "reasoning_effort", self.reasoning_effort

    def _budgets(self) -> Iterator[tuple[str, int]]:
        """Every budget; the first counts."""
        limits = (
            ("thinking.budget_tokens", self.thinking.budget_tokens if self.thinking else None),
            ("reasoning.max_tokens", self.reasoning.max_tokens if self.reasoning else None),
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking_budget", self.thinking_budget),
        )
        yield from ((field, limit) for field, limit in limits if limit is not None)
