"""Reads the answer to a raw prompt: all of it is content, control tokens as their literals."""

from __future__ import annotations

from dovetail.events import Content
from dovetail.reading import Reader, ReaderOptions
from dovetail.reading.reader import Script


class RawReader(Reader):
    controls = ()

    def __init__(self) -> None:
        super().__init__(ReaderOptions(thinking=False))

    def _answer(self) -> Script[None]:
        """Read everything: a control token at the beginning is text, too."""
        return self._read()

    def _read(self) -> Script[None]:
        yield from self._value(lambda text: self._events.append(Content(text)))
