"""The machine under every reader: scanner -> states -> events."""

from dovetail.reading.reader import Reader

__all__ = ["Reader"]
