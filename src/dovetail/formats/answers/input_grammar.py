"""The grammar of the arguments of a call to a custom tool that has a grammar of its own.

The arguments are one string, `input`. A family writes it in quotes or as the text of a tag. The client's grammar is
spelled accordingly, and stands in the middle of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.custom_tools import INPUT, InputGrammar, parameters
from dovetail.errors import SchemaRefused
from dovetail.formats.answers.parameter_grammar import Markup
from dovetail.grammar import Choice, ClientText, Concat, ExactText, JsonSchema, Loosened, Node, TextUntil
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs import regex_text, spelling
from dovetail.grammar.inputs.language import InputGrammarError, language
from dovetail.grammar.inputs.matching import matcher

#: White space as our JSON Schemas allow it.
_SPACE = r"(?:[ \t]{1,4}|\r?\n[ \t]{0,32})?"
_JSON = rf'\{{{_SPACE}"{INPUT}"{_SPACE}:{_SPACE}"', rf'"{_SPACE}\}}'


class ClientGrammar:
    """A client's grammar, and the field of the request that it is in. Raises `SchemaRefused` if it cannot be used."""

    def __init__(self, grammar: InputGrammar, origin: str) -> None:
        self.origin = origin
        self._grammar = grammar
        try:
            self._language = language(grammar)
            matcher(grammar)
        except InputGrammarError as error:
            raise SchemaRefused(f"{origin} cannot be enforced: {error}", param=origin) from None

    def in_json(self) -> Node:
        """An object with the input."""
        return self.quoted(*_JSON, JsonSchema(_SCHEMA, self.origin))

    def quoted(self, before: str, after: str, otherwise: Node) -> Node:
        """A string with the escapes of JSON, which are Python's too. `before`, `after`: regexes of what is around it,
        quotes included. `otherwise`: all of this with any string, for a library that cannot enforce the grammar."""

        def make() -> Node:
            around = map(regex_text.parse, (before, after))
            return spelling.node(self._language, spelling.escaped, *around)

        return self._text(self._cached((before, after), make), otherwise)

    def in_tags(self, markup: Markup) -> Node:
        """A parameter with the input as its text, which contains nothing that a reader takes for its end."""
        first = markup.after[0]
        end, rest = (first.text, markup.after[1:]) if isinstance(first, ExactText) else ("", markup.after)
        before = (*markup.opening, *markup.before, ExactText(markup.attribute(INPUT)), *markup.between["string"])
        text, (opener, closer) = self._raw(end, markup.stops), markup.quotes
        if opener:
            stops = tuple(stop for stop in markup.stops if stop != opener)
            text = Choice((text, Concat((ExactText(opener), self._raw(closer + end, stops)))))
        return Concat((*before, text, *rest))

    def _raw(self, end: str, stops: tuple[str, ...]) -> Node:
        plain = TextUntil(end, stops)
        tags = {*end[:1], *("<" if stops else "")}
        if not self._language.is_regular and any(spelling.may_contain(self._language, first) for first in tags):
            # The library cannot keep the end, or a part of it, out of a text that is made of several terminals.
            return Loosened(plain, self.origin, ("",))
        text = self._cached((), lambda: spelling.node(self._language, lambda expression: expression))
        return self._text(text, plain, end, stops)

    def _cached(self, around: tuple[str, ...], make: Callable[[], Node]) -> Node:
        return _NODES.get((self._grammar, around), len(self._grammar.definition), make)

    def _text(self, text: Node, otherwise: Node, end: str = "", without: tuple[str, ...] = ()) -> Node:
        portable = spelling.is_portable(self._language)
        return ClientText(text, otherwise, self.origin, portable, end, without)


#: Making the nodes takes milliseconds, and the same tools come with every turn.
_NODES: Cache[Node] = Cache(256, 2**22)
_SCHEMA: dict[str, Any] = {**parameters(None), "properties": {INPUT: {"type": "string"}}}
