"""A regex of all texts but some, which no syntax of regexes that JSON Schema knows has a word for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LONGEST, _MOST = 100, 2_000  # characters of one text, and of all


def other_keys(known: Iterable[str]) -> str | None:
    """A regex, in llguidance's dialect, that matches every text but those in `known`; None if these are too long."""
    tree: dict[str, Any] = {}
    size = 0
    for text in known:
        size += len(text)
        if len(text) > _LONGEST or size > _MOST or max(text, default="") > "\uffff":
            return None
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}  # here one of them ends
    return f"^{_outside(tree)}$"


def _outside(node: dict[str, Any]) -> str:
    """What may follow the letters that led to `node`."""
    letters = [letter for letter in node if letter]
    options = [] if "" in node else [""]
    options.append(f"[^{''.join(map(_spelled, letters))}][\\s\\S]*" if letters else "[\\s\\S]+")
    options += (_spelled(letter) + _outside(node[letter]) for letter in letters)
    return f"(?:{'|'.join(options)})"


def _spelled(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\u{ord(letter):04x}"
