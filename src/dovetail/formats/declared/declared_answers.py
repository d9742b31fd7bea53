"""`DeclaredAnswers`: what a model of a declared format may answer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dovetail.conversation import Tool
from dovetail.events import Message
from dovetail.formats.answers import call_envelope, value_grammar
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.declared.value_syntax import Syntax
from dovetail.grammar import JsonSchema, Node, Regex, Rules
from dovetail.reading.json_objects import CALL_ID_TEXT
from dovetail.tokens import Prompt

if TYPE_CHECKING:
    from dovetail.formats.declared.declared import DeclaredFormat


class DeclaredAnswers(AnswerGrammar):
    format: DeclaredFormat

    @functools.cached_property
    def _syntax(self) -> Syntax | None:
        return self.format.calls_to_write().syntax(self.mark)

    def arguments(self, index: int, tool: Tool) -> Node:
        node = super().arguments(index, tool)
        if self._syntax is None or not isinstance(node, JsonSchema):
            return node
        item, rules = value_grammar.arguments(node.schema, node.origin, f"t{index}_", self._syntax)
        return Rules(self._syntax.object(item), self._syntax.anything() | rules)

    def custom_input(self, grammar: ClientGrammar) -> Node:
        markup = self.format.calls_to_write().input_markup(self.mark)
        return super().custom_input(grammar) if markup is None else grammar.in_tags(markup)

    def write_indexed(self, message: Message) -> Prompt:
        fmt = self.format
        return fmt._written(message, False, fmt.calls_to_write(), index=call_envelope.INDEX)

    def call_id(self, name: str) -> Node:
        return Regex(CALL_ID_TEXT.pattern)
