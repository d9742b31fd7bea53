"""Grammars: what an answer may be, as data, and the writers for the libraries that enforce it."""

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
