"""Writes a plan as `llama-server`, llama.cpp's own server, with the options of its version 0.5.0."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from dovetail.plan.emit.command import Command, Remaining, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import OPTIONS

#: Method -> its name in --spec-type, and the flag for how many tokens it drafts.
METHODS: Mapping[str, tuple[str, str]] = {
    "draft_model": ("draft-simple", "--spec-draft-n-max"),
    "eagle3": ("draft-eagle3", "--spec-draft-n-max"),
    "mtp": ("draft-mtp", "--spec-draft-n-max"),
    "dflash": ("draft-dflash", "--spec-draft-n-max"),
    "dspark": ("draft-dspark", "--spec-draft-n-max"),
    "ngram": ("ngram-simple", "--spec-ngram-simple-size-m"),
}
_CACHES = {"bfloat16": "bf16", "float16": "f16"}


def command(plan: Mapping[str, Setting[Any]]) -> Command:
    """The command `llama-server` for the plan. Its context is for all sequences together, the plan's for each."""
    remaining = Remaining(plan, "llama.cpp")
    remaining.leave_out("format", "llama.cpp reads calls by its own parsers of chat templates")
    arguments: list[tuple[str, ...]] = [("--model", remaining.take("target"))]
    context, batch = remaining.take("context"), remaining.peek("max_batch") or 1
    if context is not None:
        arguments.append(("--ctx-size", str(context * batch)))
    arguments += _speculation(remaining)
    cache = _CACHES.get(remaining.peek("kv_cache_dtype") or "")
    if cache is not None:
        remaining.take("kv_cache_dtype")
        arguments += [("--cache-type-k", cache), ("--cache-type-v", cache)]
    for option in OPTIONS:
        flag = option.engine_names.get("llama.cpp", "")
        if flag.startswith("--"):
            arguments += remaining.take_flag(option.name, flag)
    arguments += [(word,) for word in shlex.split(remaining.take("engine_args") or "")]
    carried = variables(remaining, {}, "VLLM_")
    return Command(start=("llama-server",), arguments=tuple(arguments), variables=carried, notes=remaining.finish())


def _speculation(remaining: Remaining) -> list[tuple[str, ...]]:
    if not remaining.can_draft(METHODS, ("drafter", "method", "draft_tokens")):
        return []
    kind, most = METHODS[remaining.take("method")]
    drafter = remaining.take("drafter")
    words: list[tuple[str, ...]] = [("--spec-type", kind), (most, str(remaining.take("draft_tokens")))]
    return words if drafter is None else [*words, ("--spec-draft-model", drafter)]
