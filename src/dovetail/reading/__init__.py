"""The machine under every reader: alphabet -> script -> events."""

from dovetail.reading.calls import CallReader
from dovetail.reading.reader import MALFORMED, OnMalformedCall, Reader, ReaderOptions, Script

__all__ = ["MALFORMED", "CallReader", "OnMalformedCall", "Reader", "ReaderOptions", "Script"]
