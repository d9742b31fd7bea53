"""Translates arguments of `vllm serve` into settings of a plan.

A flag that is a setting becomes that setting. Other flags stay as they are, in `engine_args`. What can be neither is
listed in `Translation.left_out`, and nothing is guessed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import msgspec

from dovetail.checkpoints import hub
from dovetail.checkpoints.methods import Method
from dovetail.errors import PlanError
from dovetail.plan.emit import extra_options
from dovetail.plan.option import Option
from dovetail.plan.options import OPTIONS

#: The flag whose members say how to draft.
SPECULATION = "--speculative-config"
#: Settings that are the user's, not the model's.
_OF_USERS = ("host", "port", "api_key_file", "served_model_name", "format", "target", "revision", "env")
_OPTIONS: Mapping[str, Option] = {
    flag: option
    for option in OPTIONS
    if (flag := option.engine_names.get("vllm", "")).startswith("--")
    and not flag.startswith(SPECULATION)
    and option.name not in _OF_USERS
}
_MEMBERS: Mapping[str, Option] = {
    flag.removeprefix(f"{SPECULATION}."): option
    for option in OPTIONS
    if (flag := option.engine_names.get("vllm", "")).startswith(f"{SPECULATION}.")
}
_METHODS = get_args(Method)
#: Flags with which nothing is lost -> why.
_NOT_NEEDED = {
    "--served-model-name": "the name is the user's",
    "--max-model-len auto": "a plan chooses the longest context that fits by itself",
}


class Translation(msgspec.Struct):
    """`left_out`: argument -> why it is not in `settings`."""

    settings: dict[str, Any]
    left_out: dict[str, str]


def translated(arguments: Iterable[str], own: Iterable[str], methods: Mapping[str, str]) -> Translation:
    """Translate `arguments`. `own`: the ids of the model itself. `methods`: drafter -> its method, where none is named.

    Raises `ValueError` for arguments that cannot be read.
    """
    result, rest, drafting = Translation({}, {}), list[str](), dict[str, Any]()
    for flag, value in _pairs(arguments):
        name, _, member = flag.partition(".")
        name = name.replace("_", "-")
        text = flag if value is None else f"{flag} {value}"
        if name == SPECULATION:
            drafting |= {member: _plain(value)} if member else json.loads(value or "")
        elif name in _NOT_NEEDED or text in _NOT_NEEDED:
            result.left_out[text] = _NOT_NEEDED.get(name) or _NOT_NEEDED[text]
        elif not member and (found := _setting(name, value)) is not None:
            result.settings[found[0]] = found[1]
        else:
            rest += [flag] if value is None else [flag, value]
    if drafting:
        _translate_drafting(drafting, frozenset(own), methods, result)
    if rest:
        result.settings["engine_args"] = _accepted(rest)
    return result


def _pairs(arguments: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Every flag with its value, None for a switch."""
    words = [word for argument in arguments for word in _words(argument)]
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not flag.startswith("-"):
            raise ValueError(f"{flag!r} is no flag")
        if equals:
            yield flag, value
        else:
            yield flag, words.pop(0) if words and not words[0].startswith("-") else None


def _words(argument: str) -> list[str]:
    """An argument as words: some files write a flag and its value as one."""
    return argument.split(" ", 1) if argument.startswith("--") and "=" not in argument else [argument]


def _setting(flag: str, value: str | None) -> tuple[str, Any] | None:
    """The setting that the flag is, and its value; None if it is no setting."""
    if flag in _OPTIONS:
        return _OPTIONS[flag].name, True if value is None else _converted(_OPTIONS[flag], value)
    for start, positive in (("--no-", "--"), ("--disable-", "--enable-")):
        option = _OPTIONS.get(positive + flag.removeprefix(start)) if flag.startswith(start) else None
        if option is not None and value is None:
            return option.name, False
    return None


def _converted(option: Option, value: Any) -> Any:
    """`value` as the option's type. Raises `ValueError` if it has another type."""
    try:
        return msgspec.convert(value, option.type, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{option.name} is {value!r}: {error}") from error


def _plain(value: str | None) -> Any:
    """The value of a flag such as --speculative-config.num_speculative_tokens."""
    try:
        return json.loads(value or "null")
    except json.JSONDecodeError:
        return value


def _translate_drafting(
    drafting: Mapping[str, Any], own: frozenset[str], methods: Mapping[str, str], result: Translation
) -> None:
    drafter = drafting.get("model")
    method = drafting.get("method") or methods.get(drafter or "")
    if method is None:
        raise ValueError(f"no method is named for the drafter {drafter}")
    # vLLM 0.33 takes every model's own name of MTP for mtp (config/speculative.py).
    method = "mtp" if method.endswith("_mtp") else method
    if method not in _METHODS:
        raise ValueError(f"the method {method} is no setting")
    if "num_speculative_tokens" not in drafting:
        raise ValueError("no number of draft tokens is named")
    result.settings["method"] = method
    if drafter is not None and drafter not in own:
        if not hub.ID.fullmatch(drafter):
            raise ValueError(f"the drafter {drafter} is no id on the hub")
        result.settings["drafter"] = drafter
    for member, value in drafting.items():
        if member in ("model", "method"):
            continue
        if member == "max_model_len":
            # The longest sequence that vLLM drafts for.
            result.settings["speculate_below_context"] = int(value)
        elif member in _MEMBERS:
            result.settings[_MEMBERS[member].name] = _converted(_MEMBERS[member], value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            result.left_out[f"{SPECULATION}.{member} {text}"] = "no setting here"


def _accepted(words: list[str]) -> str:
    """`words` as `engine_args`. Raises `ValueError` if a plan would refuse them."""
    text = shlex.join(words)
    try:
        extra_options.check(text)
    except PlanError as error:
        raise ValueError(error.message) from error
    return text
