"""The names of the parsers, and the formats that each name may mean.

`dovetail_<format>` means one format. One of vLLM's own names, if it is overridden, may mean several formats; then the
name of the other parser and the checkpoint decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from dovetail.errors import PlanError
from dovetail.formats.prompts.history import listed_kinds
from dovetail.formats.registry import FAMILIES, NAMES
from dovetail.reading import OnMalformedCall

PREFIX = "dovetail_"
#: Environment variable: the parsers of vLLM that Dovetail replaces, a list like ``kimi_k2,deepseek_v32``, or ``all``.
OVERRIDE = "DOVETAIL_VLLM_OVERRIDE"
#: Environment variable: the kinds of repair to leave out, a list like ``call_id,result_id``, or ``all``.
NO_REPAIR = "DOVETAIL_VLLM_NO_REPAIR"
#: Environment variable: what becomes of a call that cannot be read, ``error`` or ``text``: see `Format.reader`.
ON_MALFORMED_CALL = "DOVETAIL_VLLM_ON_MALFORMED_CALL"

Names = Mapping[str, tuple[str, ...]]


def _built_in(kind: Literal["calls", "reasoning"]) -> Names:
    """vLLM's own parsers of that kind, each with the formats that it reads."""
    formats: dict[str, tuple[str, ...]] = {}
    for fmt, family in FAMILIES.items():
        name = getattr(family.vllm_parsers, kind, None)
        # vLLM parses gpt-oss itself, and takes no other parser for it.
        if name is not None and fmt != "harmony":
            formats[name] = (*formats.get(name, ()), fmt)
    return MappingProxyType(formats)


OWN: Names = MappingProxyType({PREFIX + name: (name,) for name in NAMES})
#: vLLM's own parser names, each with its formats.
TOOL_PARSERS, REASONING_PARSERS = _built_in("calls"), _built_in("reasoning")


def overridden(words: str) -> tuple[Names, Names]:
    """vLLM's tool parsers and reasoning parsers that the value `words` of `OVERRIDE` names, with their formats.

    Raises `PlanError` for a name that cannot be overridden.
    """
    known = sorted({*TOOL_PARSERS, *REASONING_PARSERS})
    requested = known if words.strip() == "all" else [word.strip() for word in words.split(",") if word.strip()]
    for name in requested:
        if name not in known:
            raise PlanError(f"{OVERRIDE} names {name!r:.80}; it may hold all, or some of {', '.join(known)}")
    return (
        {name: TOOL_PARSERS[name] for name in requested if name in TOOL_PARSERS},
        {name: REASONING_PARSERS[name] for name in requested if name in REASONING_PARSERS},
    )


def repairs_off(words: str) -> frozenset[str]:
    """The kinds of repair that the value `words` of `NO_REPAIR` leaves out. Raises `InvalidRequest`."""
    return listed_kinds(words.strip() or "none")


def on_malformed_call(word: str) -> OnMalformedCall:
    """The value `word` of `ON_MALFORMED_CALL`; the default is "error". Raises `PlanError`."""
    match word.strip():
        case "" | "error":
            return "error"
        case "text":
            return "text"
        case _:
            raise PlanError(f"{ON_MALFORMED_CALL} is {word!r:.80}; it may be error or text")
