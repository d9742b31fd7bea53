"""What the parsers are called, and which formats a name may stand for.

`dovetail_<format>` is one format. A built-in name that is overridden may stand for several: the other parser's name,
and the checkpoint, say which.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from dovetail.errors import PlanError
from dovetail.formats.history import listed_kinds
from dovetail.formats.registry import FAMILIES, NAMES

PREFIX = "dovetail_"
#: Built-in names that are to be Dovetail's: a list like ``kimi_k2,deepseek_v32``, or ``all``.
OVERRIDE = "DOVETAIL_VLLM_OVERRIDE"
#: Kinds of repair that are left out: a list like ``call_id,result_id``, or ``all``.
NO_REPAIR = "DOVETAIL_VLLM_NO_REPAIR"

Names = Mapping[str, tuple[str, ...]]


def _built_in(kind: Literal["calls", "reasoning"]) -> Names:
    """vLLM's own parsers of that kind, each with the formats that it reads."""
    found: dict[str, tuple[str, ...]] = {}
    for fmt, family in FAMILIES.items():
        name = getattr(family.vllm_parsers, kind, None)
        # vLLM reads gpt-oss itself whatever the parser, and takes no other parser there.
        if name is not None and fmt != "harmony":
            found[name] = (*found.get(name, ()), fmt)
    return MappingProxyType(found)


OWN: Names = MappingProxyType({PREFIX + name: (name,) for name in NAMES})
#: Built-in names with the formats that they are for.
TOOL_PARSERS, REASONING_PARSERS = _built_in("calls"), _built_in("reasoning")


def overridden(words: str) -> tuple[Names, Names]:
    """The built-in tool and reasoning parsers that a value of `OVERRIDE` names, with their formats.

    Raises `PlanError` for a name that is none of those that can be overridden.
    """
    known = sorted({*TOOL_PARSERS, *REASONING_PARSERS})
    asked = known if words.strip() == "all" else [word.strip() for word in words.split(",") if word.strip()]
    for name in asked:
        if name not in known:
            raise PlanError(f"{OVERRIDE} names {name!r:.80}; what can be overridden is all, or of {', '.join(known)}")
    return (
        {name: TOOL_PARSERS[name] for name in asked if name in TOOL_PARSERS},
        {name: REASONING_PARSERS[name] for name in asked if name in REASONING_PARSERS},
    )


def repairs_off(words: str) -> frozenset[str]:
    """The kinds of repair that a value of `NO_REPAIR` leaves out. Raises `InvalidRequest` for a kind there is not."""
    return listed_kinds(words.strip() or "none")
