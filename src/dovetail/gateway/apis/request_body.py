"""Reads a body as the typed request of an API; every error is an `InvalidRequest` that names the field."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, TypeVar

import msgspec

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
        *("user", "metadata", "client_metadata", "safety_identifier", "user_profile_id", "workspace_id", "request_id"),
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

    Without those that never change an answer. `body` has been decoded as a `kind`.
    """
    known = _HARMLESS.union(kind.__struct_fields__)
    return tuple(field for field in _FIELDS.decode(body) if field not in known)


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
