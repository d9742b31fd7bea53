"""The grammars that one request brings: the CPU time to read them is bounded together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from dovetail.conversation import Tool
from dovetail.custom_tools import DEFINITION, InputGrammar
from dovetail.errors import SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs.language import InputGrammarError
from dovetail.grammar.inputs.matching import matcher

#: Seconds of CPU for the grammars of a request. That of codex takes 6 ms, the worst known half a second.
_SECONDS = 2.0
_CACHED, _CACHED_BYTES = 1_024, 2**20


def check_together(tools: Iterable[Tool]) -> None:
    """Read the grammars of `tools`. Raises `SchemaRefused`, which names the tool, if they take too long together.

    A grammar that was read before counts as much again, so that a request is treated alike whatever came before.
    """
    remaining = _SECONDS
    for number, tool in enumerate(tools):
        if tool.grammar is None:
            continue
        if remaining <= 0:
            origin = f"tools[{number}].{DEFINITION}"
            raise SchemaRefused(
                f"{origin} is not read: the grammars of the tools before it took more than {_SECONDS:g} seconds",
                param=origin,
            )
        grammar = tool.grammar
        remaining -= _COSTS.get(grammar, len(grammar.definition), partial(_cost, grammar))


_COSTS: Cache[float] = Cache(_CACHED, _CACHED_BYTES)


def _cost(grammar: InputGrammar) -> float:
    """Seconds of CPU that reading a grammar takes, and testing it. Whether it can be used is told elsewhere."""
    began = time.thread_time()
    with suppress(InputGrammarError):
        matcher(grammar)
    return time.thread_time() - began
