"""Pictures in requests: parts of each API as parts of messages, or a text in their place if the model sees none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dovetail.completion import Picture
from dovetail.errors import InvalidRequest
from dovetail.gateway.turn.picture_files import LIMITS, RemotePicture, checked

#: Whether the model sees pictures. Called at the first picture of a request, when the engine has started.
Sees = Callable[[], bool]


def blind() -> bool:
    """`Sees` for a model that reads text only."""
    return False


#: The types of parts and blocks that are shown rather than read, and the word for each.
_WORDS = {"image_url": "picture", "input_image": "picture", "image": "picture", "video_url": "video"}
_INDEX = re.compile(r"\[(\d+)\]")
_DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*;base64,", re.IGNORECASE)
_HTTPS = re.compile(r"https://[^\s\\/?#@]+(?:[/?#][^\s\\]*)?", re.IGNORECASE)
_DETAILS = ("auto", "low", "high", "original")


class Pictures:
    """The pictures of one request.

    `taken`: those that the model sees. `omitted`: the fields of what it does not see, for the response to report.
    """

    def __init__(self, sees: Sees) -> None:
        self._sees = sees
        self.taken: list[Picture | RemotePicture] = []
        self.omitted: list[str] = []

    def part(self, block: Mapping[str, Any], field: str) -> dict[str, Any] | None:
        """The part of a message for a picture: an image with its number in `taken`, or the text in its place.

        None for a block of another type. `field`: the block's place. Raises `InvalidRequest` naming a field in it.
        """
        word = _word(block.get("type"))
        if word is None:
            return None
        if word != "picture" or not self._sees():
            return {"type": "text", "text": self.left_out(block, field)}
        if len(self.taken) == LIMITS.count:
            raise InvalidRequest(f"{field} is one picture too many: a request may have {LIMITS.count}", param=field)
        source = block.get("source")
        if block["type"] == "image" and isinstance(source, Mapping):
            self.taken.append(_of_source(source, f"{field}.source"))
        else:
            self.taken.append(_of_url(*_url(block, field)))
        if (detail := _detail(block, field)) is not None:
            self.omitted.append(detail)
        return {"type": "image", "number": len(self.taken) - 1}

    def left_out(self, block: Mapping[str, Any], field: str) -> str | None:
        """The text in place of a picture that the model does not see; None for a block of another type."""
        kind = block.get("type")
        word = _word(kind)
        if word is None:
            return None
        self.omitted.append(f"{field}:{kind}")
        if word == "picture" and self._sees():
            return "[picture left out: the model sees none here]"
        return f"[{word} left out: this model reads {'text and pictures' if self._sees() else 'text'} only]"


def _word(kind: Any) -> str | None:
    return _WORDS.get(kind) if isinstance(kind, str) else None


def _url(block: Mapping[str, Any], field: str) -> tuple[str, str]:
    """The URL of a picture, and its field."""
    value, where = block.get("image_url"), f"{field}.image_url"
    if isinstance(value, Mapping):
        value, where = value.get("url"), f"{where}.url"
    if not isinstance(value, str) or not value:
        hint = ": there are no stored files, send a data: URL" if "file_id" in block else ""
        raise InvalidRequest(f"{where} must be a URL{hint}", param=where)
    return value, where


def _of_source(source: Mapping[str, Any], field: str) -> Picture | RemotePicture:
    """The picture of an image block's source in Anthropic's API."""
    kind, data, url = source.get("type"), source.get("data"), source.get("url")
    if kind == "base64" and isinstance(data, str) and isinstance(source.get("media_type"), str):
        return _of_base64(data, f"{field}.base64")
    if kind == "url" and isinstance(url, str):
        return _of_url(url, f"{field}.url")
    known = 'with the type "base64", media_type and data, or with the type "url" and url'
    raise InvalidRequest(f"{field} must be an object {known}", param=field)


def _detail(block: Mapping[str, Any], field: str) -> str | None:
    """The field of a `detail` that asks for a resolution of its own, which no engine takes; None if it does not."""
    holder, where = block, f"{field}.detail"
    if isinstance(block.get("image_url"), Mapping):
        holder, where = block["image_url"], f"{field}.image_url.detail"
    detail = holder.get("detail")
    if detail not in (None, *_DETAILS):
        raise InvalidRequest(f"{where} must be one of {', '.join(_DETAILS)}", param=where)
    return where if detail in ("low", "original") else None


def _of_url(url: str, field: str) -> Picture | RemotePicture:
    """The picture in a data: URL, or the one that an https URL names."""
    if url[:6].lower() == "https:" and _HTTPS.fullmatch(url):
        return RemotePicture(url, field)
    match = _DATA_URL.match(url)
    if match is None:
        raise InvalidRequest(f"{field} must be a data: URL in base64, or an https URL", param=field)
    return _of_base64(url[match.end() :], field)


def _of_base64(text: str, field: str) -> Picture:
    try:
        data = msgspec.convert(text, bytes)  # a fifth of the time that Python's own decoder takes
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{field} is not base64", param=field) from error
    return checked(data, field)


def refused(block: Mapping[str, Any], field: str, why: str = "this model reads text only") -> InvalidRequest:
    """The error for an image block, in the words of Anthropic's API. claude-code then drops the picture and goes on.

    `field`: the block, as in `messages[3].content[0]`, or one inside that block.
    """
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    place = ".content.".join(_INDEX.findall(field)[:2])
    where = f"messages.{place}.image.source.{'url' if kind == 'url' else 'base64'}"
    return InvalidRequest(f"{where}: Could not process image: {why}")
