"""`POST /inspect/render`: the prompt of a chat completion, as the served model or any other format writes it."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from dovetail.errors import DovetailError, InvalidRequest
from dovetail.formats.base import Format
from dovetail.formats.history import Repair
from dovetail.formats.registry import FAMILIES
from dovetail.formats.registry import format as format_of
from dovetail.gateway.apis.chat import turn_request
from dovetail.gateway.apis.chat_request import decode
from dovetail.gateway.apis.request_body import decode_body
from dovetail.gateway.apis.tokens import RenderedSegment
from dovetail.gateway.http.query_endpoint import Reply
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Prompt


class FormatRenderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`request`: the body of a chat completion. `format`: one of `Formats.names`; None: that of the served model."""

    request: msgspec.Raw
    format: str | None = None


class FormatPrompt(msgspec.Struct, frozen=True):
    """A prompt. `count`: its tokens; None for another format than the served model's, whose tokenizer is not here."""

    text: str
    segments: tuple[RenderedSegment, ...]
    repairs: tuple[Repair, ...]
    count: int | None


#: Formats of checkpoints that are remembered: each takes a second at most to make.
_REMEMBERED = 16
_REQUEST = msgspec.json.Decoder(FormatRenderRequest)


class FormatRender:
    """The prompt of a chat completion in one format."""

    def __init__(self, formats: Formats, body: bytes) -> None:
        asked = decode_body(_REQUEST, body)
        request = decode(bytes(asked.request))
        self.model = request.model
        self._format = None if asked.format is None else formats.named(asked.format)
        self._request = turn_request(request)

    def reply(self, runner: TurnRunner) -> Reply:
        if self._format is None:
            rendered = runner.render(self._request)
            return _reply(rendered.prompt, rendered.repairs, len(rendered.ids))
        return _reply(*runner.render_in(self._request, self._format), None)


def _reply(prompt: Prompt, repairs: tuple[Repair, ...], count: int | None) -> Reply:
    segments = tuple(RenderedSegment(*segment) for segment in prompt.segments)
    return Reply(msgspec.json.encode(FormatPrompt(prompt.text, segments, repairs, count)))


@functools.cache
def native_formats() -> dict[str, Format]:
    """The formats that write prompts without a chat template, by name."""
    formats = (family() for _, family in sorted(FAMILIES.items()))
    return {fmt.name: fmt for fmt in formats if fmt.is_native}


class Formats:
    """The formats that prompts can be rendered in: those that need no chat template, and those of the checkpoints in
    `folder`, each by the name of its own folder.

    A template is a program, so it comes from a folder of the operator and never from a client.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._of = functools.lru_cache(_REMEMBERED)(format_of)

    def names(self) -> list[str]:
        """Their names. A folder of checkpoints that cannot be read has none."""
        return [*native_formats(), *self._checkpoints()]

    def named(self, name: str) -> Format:
        """The format `name`. Raises `InvalidRequest`."""
        if (native := native_formats().get(name)) is not None:
            return native
        path = self._checkpoints().get(name)
        if path is None:
            known = ", ".join(self.names())
            text = f"{name!r:.80} is no format that can be rendered here without a chat template; {known} are"
            raise InvalidRequest(text, param="format")
        try:
            return self._of(path)
        except DovetailError as error:
            raise InvalidRequest(f"the format of {name} is not known: {error.message}", param="format") from error

    def _checkpoints(self) -> dict[str, Path]:
        if self._folder is None:
            return {}
        try:
            folders = sorted(path for path in self._folder.iterdir() if path.is_dir())
        except OSError:
            return {}
        return {path.name: path for path in folders if path.name not in native_formats()}
