"""The check after a call to a custom tool: whether its input is in the client's grammar, whatever the engine enforced.

The matcher is that of decoding, over single bytes.
"""

from __future__ import annotations

import json
import time

from dovetail.custom_tools import INPUT, InputGrammar
from dovetail.errors import SchemaRefused
from dovetail.grammar.inputs.language import InputGrammarError
from dovetail.grammar.inputs.matching import matcher
from dovetail.grammar.schemas.check import Checker, Fault

#: Bytes that the library reads at once, because other threads wait meanwhile; and bytes read in the event loop.
_PIECE, _QUICK = 1_024, 256
_SECONDS = 0.5


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
        until = time.thread_time() + _SECONDS
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
