"""What a reader of the list searches for, and whether a recording is that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.inspect.summary import Summary
from dovetail.gateway.recordings.recording import NOTHING, RecordedError, RecordedMessage, RecordedPrompt

#: Recordings of one reply.
_MOST = 200
_LONGEST_TEXT = 200


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Which recordings to list: the newest `limit`, of those that come behind `before` in the list.

    `text`: occurs in the request, in the prompt, in the message or in an id, in any case. `finish`, `model`: exactly
    so. `defects`: only those with a defect, with a fault of a call, or that cannot be read.
    """

    limit: int = 50
    before: str | None = None
    text: str = ""
    finish: str = ""
    model: str = ""
    defects: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Search:
        """The search of a URL's `query`. Raises `InvalidRequest`, which names the parameter."""
        for name in query:
            if name not in cls.__struct_fields__:
                raise InvalidRequest(f"{name:.80} is no parameter; {', '.join(cls.__struct_fields__)} are", param=name)
        try:
            search = msgspec.convert(dict(query), cls, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"a parameter of the list is wrong: {error}") from error
        if not 1 <= search.limit <= _MOST:
            raise InvalidRequest(f"limit is {search.limit}, and has to be 1 to {_MOST}", param="limit")
        if len(search.text) > _LONGEST_TEXT:
            raise InvalidRequest(f"text has {len(search.text)} characters, and may have {_LONGEST_TEXT}", param="text")
        return search

    def fits(self, summary: Summary) -> bool:
        """Whether `summary` is listed, apart from `text`."""
        return (
            (not self.finish or self.finish in summary.finish)
            and (not self.model or self.model == summary.model)
            and (not self.defects or bool(summary.defects) or summary.unreadable is not None)
        )

    def occurs_in(self, data: bytes) -> bool:
        """Whether `text` occurs in a recording."""
        try:
            texts = msgspec.json.decode(data, type=_Texts)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        text = self.text.casefold()
        return any(text in each.casefold() for each in texts.all())


class _Texts(msgspec.Struct):
    """The texts of a recording, without its steps."""

    id: str = ""
    request_id: str = ""
    model: str | None = None
    request: msgspec.Raw = NOTHING
    prompt: RecordedPrompt | None = None
    messages: tuple[RecordedMessage, ...] = ()
    error: RecordedError | None = None

    def all(self) -> Iterator[str]:
        yield from (self.id, self.request_id, self.model or "", bytes(self.request).decode(errors="replace"))
        # As the model saw it: control tokens divide it, and nothing is escaped.
        yield "".join(segment.text for segment in (self.prompt and self.prompt.segments) or ())
        for message in self.messages:
            yield from (message.content, message.reasoning)
            yield from (text for call in message.calls for text in (call.name, call.arguments))
        if self.error is not None:
            yield self.error.message
