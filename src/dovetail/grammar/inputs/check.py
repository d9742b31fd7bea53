"""The checks of custom tools: what all grammars of a request cost together, and whether an input is in its grammar.

The matcher is the one that decoding uses, over single bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from dovetail.conversation import Tool
from dovetail.custom_tools import INPUT, InputGrammar
from dovetail.errors import SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs.language import InputGrammarError
from dovetail.grammar.inputs.matching import matcher
from dovetail.grammar.schemas.check import Checker, Fault

#: Bytes that the library reads at once, because other threads wait meanwhile; and bytes read in the event loop.
_PIECE, _QUICK = 1_024, 256
#: Seconds of CPU for the check of an input, and for the grammars of a request. Codex's takes 6 ms, the worst known half
#: a second.
_CHECK_SECONDS, _READ_SECONDS = 0.5, 2.0
_CACHED, _CACHED_BYTES = 1_024, 2**20


class InputChecker:
    """Checks the arguments of calls to one custom tool, as `Checker` does. Raises `SchemaRefused`, with `origin`, for a
    grammar that cannot be used."""

    def __init__(self, grammar: InputGrammar, arguments: Checker, origin: str) -> None:
        self._arguments, self._grammar = arguments, grammar
        try:
            matcher(grammar)
        except InputGrammarError as error:
            raise SchemaRefused(f"{origin} cannot be enforced: {error}", param=origin) from None

    def is_quick(self, arguments: str) -> bool:
        """As `Checker.is_quick`."""
        return len(arguments) <= _QUICK and self._arguments.is_quick(arguments)

    def fault(self, arguments: str) -> Fault | None:
        """The fault of `arguments`, a JSON text; None if they are valid and the input is in the grammar."""
        if (fault := self._arguments.fault(arguments)) is not None:
            return fault
        text, matching = json.loads(arguments)[INPUT].encode(), matcher(self._grammar)
        until = time.thread_time() + _CHECK_SECONDS
        for start in range(0, len(text), _PIECE):
            piece = [*text[start : start + _PIECE]]
            consumed = matching.try_consume_tokens(piece)
            if matching.is_error() or time.thread_time() > until:
                return Fault("unchecked_arguments", f"/{INPUT} takes too long to match")
            if consumed < len(piece):
                return Fault("schema_mismatch", f"/{INPUT} against the tool's grammar")
        if not matching.is_accepting():
            return Fault("schema_mismatch", f"/{INPUT} ends too early for the tool's grammar")
        return None


def check_together(tools: Iterable[Tool]) -> None:
    """Read the grammars of `tools`. Raises `SchemaRefused`, which names the tool, if they take too long together.

    A grammar that was read before counts as much again, so that a request is treated alike whatever came before.
    """
    remaining = _READ_SECONDS
    for tool in tools:
        if tool.grammar is None:
            continue
        if remaining <= 0:
            origin = tool.grammar_field
            raise SchemaRefused(
                f"{origin} is not read: the grammars of the tools before it took more than {_READ_SECONDS:g} seconds",
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
