"""Serves open agentic models so that tool calls stay exact at speculative speed.

The public names are `format`, `tokenizer`, `fold` and `DovetailError`. Each is imported at its first use, so that
`import dovetail` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.errors import DovetailError
    from dovetail.events import fold
    from dovetail.formats import format
    from dovetail.tokens import tokenizer

__version__ = "0.1.0.dev0"
__all__ = ["DovetailError", "__version__", "fold", "format", "tokenizer"]

_HOMES = {
    "DovetailError": "dovetail.errors",
    "fold": "dovetail.events",
    "format": "dovetail.formats",
    "tokenizer": "dovetail.tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
