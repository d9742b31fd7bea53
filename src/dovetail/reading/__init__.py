"""The machine under every reader: alphabet -> script -> events."""

from dovetail.reading.calls import CallReader
from dovetail.reading.reader import Reader, ReaderOptions, Script

__all__ = ["CallReader", "Reader", "ReaderOptions", "Script"]
