"""What a model may say next, as data, and its writers."""

from dovetail.grammar.grammar import Grammar
from dovetail.grammar.nodes import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Index,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherName,
    OtherSyntax,
    Regex,
    Repeat,
    RuleRef,
    Rules,
    TextUntil,
)

__all__ = [
    "Choice",
    "Concat",
    "ControlToken",
    "ExactText",
    "FreeText",
    "Grammar",
    "Index",
    "JsonSchema",
    "Loosened",
    "Maybe",
    "Node",
    "OtherName",
    "OtherSyntax",
    "Regex",
    "Repeat",
    "RuleRef",
    "Rules",
    "TextUntil",
]
