"""What a model may say next, as data, and its writers."""

from dovetail.grammar.grammar import Grammar
from dovetail.grammar.nodes import (
    Choice,
    Control,
    FreeText,
    Index,
    JsonSchema,
    Literal,
    Node,
    Optional,
    Repeat,
    Sequence,
)

__all__ = [
    "Choice",
    "Control",
    "FreeText",
    "Grammar",
    "Index",
    "JsonSchema",
    "Literal",
    "Node",
    "Optional",
    "Repeat",
    "Sequence",
]
