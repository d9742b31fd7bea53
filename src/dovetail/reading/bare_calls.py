"""`BareCallReader`: calls in JSON that need no marker, because they are the whole content."""

from __future__ import annotations

from dovetail.events import Content
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import Script


class BareCallReader(JsonCallReader):
    """Content is calls if it begins with an object that has a call's keys, or with a list of such objects.

    A list counts in families whose calls are one.
    """

    unmarked = r"\{"

    def _content_begins(self) -> Script[None]:
        if not self._options.calls or self._options.structured:
            yield from super()._content_begins()
            return
        raw = [(yield from self._skip(WHITESPACE, MOST_SPACE))]
        lists = 0
        if self.in_list and (yield from self._peek()) == "[":
            raw += ((yield from self._skip("[", 1)), (yield from self._skip(WHITESPACE, MOST_SPACE)))
            lists = 1
        if (yield from self._peek()) == "{":
            raw += ((yield from self._skip("{", 1)), (yield from self._skip(WHITESPACE, MOST_SPACE)))
            keys = self.keys.quoted()
            if (yield from self._next_is(*keys, *(key.replace('"', "'") for key in keys))) is not None:
                self._unread()
                yield from self._bare_calls(raw, lists)
                return
        if text := "".join(raw):
            self._show(Content, text)

    def _bare_calls(self, raw: list[str], lists: int) -> Script[None]:
        """Read calls, if the first object is one. `raw` was read before, with as many brackets as `lists` says."""
        before = self._index
        marker = yield from self._object(raw, *self.controls, certain=False)
        if self._index == before:
            self._shown = "}"  # the object is content
        elif marker == "":
            marker = yield from self._calls(*self.controls, read=1, lists=lists)
        if marker:
            self._unread()
