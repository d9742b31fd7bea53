"""Serves open agentic models so that tool calls stay exact at speculative speed.

The public names are in `__all__`; docs/library.md shows them at work. Each is imported at its first use, so that
`import dovetail` is fast.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from dovetail.errors import DovetailError
    from dovetail.events import (
        Call,
        CallArguments,
        CallEnd,
        CallStart,
        Content,
        Defect,
        Event,
        Message,
        Reasoning,
        fold,
    )
    from dovetail.formats import format
    from dovetail.formats.base import Format
    from dovetail.formats.turn import Turn
    from dovetail.grammar import Grammar
    from dovetail.reading import Reader
    from dovetail.tokens import Prompt, Tokenizer, tokenizer

__version__ = "0.1.0.dev0"
__all__ = [
    "Call",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Defect",
    "DovetailError",
    "Event",
    "Format",
    "Grammar",
    "Message",
    "Prompt",
    "Reader",
    "Reasoning",
    "Tokenizer",
    "Turn",
    "__version__",
    "fold",
    "format",
    "tokenizer",
]

_EVENTS = "Call CallArguments CallEnd CallStart Content Defect Event Message Reasoning fold"
_HOMES = {
    "DovetailError": "dovetail.errors",
    **dict.fromkeys(_EVENTS.split(), "dovetail.events"),
    "Format": "dovetail.formats.base",
    "Grammar": "dovetail.grammar",
    "Prompt": "dovetail.tokens",
    "Reader": "dovetail.reading",
    "Tokenizer": "dovetail.tokens",
    "Turn": "dovetail.formats.turn",
    "format": "dovetail.formats",
    "tokenizer": "dovetail.tokens",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
