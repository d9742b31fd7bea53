"""What a model may say next, as data, and its writers."""

from dovetail.grammar.grammar import Grammar
from dovetail.grammar.nodes import (
    Choice,
    Control,
    FreeText,
    Index,
    JsonSchema,
    Literal,
    Name,
    Node,
    Optional,
    Pattern,
    Ref,
    Repeat,
    Rules,
    Sequence,
    Spelled,
    TextBefore,
    Wider,
)

__all__ = [
    "Choice",
    "Control",
    "FreeText",
    "Grammar",
    "Index",
    "JsonSchema",
    "Literal",
    "Name",
    "Node",
    "Optional",
    "Pattern",
    "Ref",
    "Repeat",
    "Rules",
    "Sequence",
    "Spelled",
    "TextBefore",
    "Wider",
]
