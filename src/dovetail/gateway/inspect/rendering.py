"""`POST /inspect/render`: the prompt of a chat completion, as the served model or any other format writes it."""

from __future__ import annotations

import functools

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format
from dovetail.formats.history import Repair
from dovetail.formats.registry import FAMILIES
from dovetail.gateway.apis.chat import turn_request
from dovetail.gateway.apis.chat_request import decode
from dovetail.gateway.apis.request_body import decode_body
from dovetail.gateway.apis.tokens import RenderedSegment
from dovetail.gateway.http.query_endpoint import Reply
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Prompt


class FormatRenderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`request`: the body of a chat completion. `format`: the name of a format; None: that of the served model."""

    request: msgspec.Raw
    format: str | None = None


class FormatPrompt(msgspec.Struct, frozen=True):
    """A prompt. `count`: its tokens; None for another format than the served model's, whose tokenizer is not here."""

    text: str
    segments: tuple[RenderedSegment, ...]
    repairs: tuple[Repair, ...]
    count: int | None


_REQUEST = msgspec.json.Decoder(FormatRenderRequest)


class FormatRender:
    """The prompt of a chat completion in one format."""

    def __init__(self, body: bytes) -> None:
        asked = decode_body(_REQUEST, body)
        request = decode(bytes(asked.request))
        self.model = request.model
        self._format = None if asked.format is None else format_named(asked.format)
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


def format_named(name: str) -> Format:
    """The native format `name`. Raises `InvalidRequest`."""
    try:
        return native_formats()[name]
    except KeyError:
        names = ", ".join(native_formats())
        text = f"{name!r:.80} is no format that writes prompts without a chat template; {names} are"
        raise InvalidRequest(text, param="format") from None
