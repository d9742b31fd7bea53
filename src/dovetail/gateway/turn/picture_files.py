"""Checks the file of a picture before an engine gets it: its type, its size, whether it is whole, and what it moves.

Pillow reads the headers. Nothing is decoded: a JPEG of a megabyte takes 17 to 72 ms, and its engine decodes it anyway.
A WebP's header is read here, because Pillow makes room for two canvases before anybody can ask how large they are.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable

import msgspec

from dovetail.completion import Picture
from dovetail.errors import InvalidRequest

#: The formats that engines read, by Pillow's names, and their media types. A phone's JPEG with two pictures is "MPO".
_MEDIA_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "GIF": "image/gif",
}
_END_OF_JPEG, _END_OF_GIF = b"\xff\xd9", b";"
#: The most pixels that are decoded for one request, in about a second.
_MOST_DECODED = 25_000_000
#: Cameras write notes behind the end of a JPEG, of this many bytes at most.
_BEHIND_JPEG = 64 * 1024


class PictureLimits(msgspec.Struct, frozen=True):
    """What the pictures of one request may have: `count` pictures, each of `size` bytes and `pixels` pixels at most."""

    count: int = 100
    size: int = 20 * 1024 * 1024
    pixels: int = 50_000_000


LIMITS = PictureLimits()


class RemotePicture(msgspec.Struct, frozen=True):
    """A picture that is to be fetched from `url`, an https URL.

    `field`: the request's field that has it. `name`: the words by which an error begins, if those are not the field.
    """

    url: str
    field: str
    name: str = ""


def checked(data: bytes, field: str, limits: PictureLimits = LIMITS) -> Picture:
    """The picture with the file `data`. Takes at most a few milliseconds after the first one, which imports Pillow.

    Raises `InvalidRequest` naming `field` for a file that is no picture, too large, cut off, or animated.
    """
    if len(data) > limits.size:
        raise _refused(field, f"has {len(data):,} bytes: at most {limits.size:,}")
    media_type = _media_type(data, field, limits)
    return Picture(data, media_type, hashlib.sha256(data).hexdigest(), field)


def undecodable(pictures: Iterable[Picture]) -> InvalidRequest | None:
    """The error for the first picture that cannot be decoded; None if there is none among those that are tried.

    For a request that its engine has refused, because no engine tells which picture it could not read.
    """
    from PIL import Image

    left = _MOST_DECODED
    for picture in pictures:
        try:
            with Image.open(io.BytesIO(picture.data)) as image:
                pixels = image.width * image.height
                if pixels <= left:
                    left -= pixels
                    image.load()
        except Exception:  # each of Pillow's readers raises other types for a broken file
            return _refused(picture.name, "is damaged: it cannot be decoded")
    return None


def _media_type(data: bytes, field: str, limits: PictureLimits) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data, field, limits)

    from PIL import Image  # only a request with a picture needs it, and it takes a tenth of a second

    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF")) as image:
            kind = image.format or ""
            _check(image.size, kind != "MPO" and getattr(image, "is_animated", False), field, limits)
            if kind == "PNG":
                image.verify()  # the checksums of all chunks, up to the last one
    except InvalidRequest:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _refused(field, f"has too many pixels: at most {limits.pixels:,}") from error
    except Exception as error:  # each of Pillow's readers raises other types for a broken file
        raise _unreadable(field) from error
    if not _is_whole(kind, data):
        raise _cut_off(field, kind)
    return _MEDIA_TYPES[kind]


def _check(size: tuple[int, int], animated: bool, field: str, limits: PictureLimits) -> None:
    if size[0] * size[1] > limits.pixels:
        raise _refused(field, f"has too many pixels: at most {limits.pixels:,}")
    if animated:
        raise _refused(field, "is animated: send one of its pictures")


def _webp(data: bytes, field: str, limits: PictureLimits) -> str:
    """The media type of a WebP file, whose first chunk has the size (RFC 9649)."""
    size, animated = None, False
    match data[12:16]:
        case b"VP8X":
            size = _number(data[24:27]) + 1, _number(data[27:30]) + 1
            animated = bool(_number(data[20:21]) & 2)
        case b"VP8L" if data[20:21] == b"\x2f":
            bits = _number(data[21:25])
            size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            size = _number(data[26:28]) & 0x3FFF, _number(data[28:30]) & 0x3FFF
    if size is None or len(data) < 30:
        raise _unreadable(field)
    _check(size, animated, field, limits)
    if _number(data[4:8]) + 8 > len(data):
        raise _cut_off(field, "WebP")
    return "image/webp"


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _is_whole(kind: str, data: bytes) -> bool:
    match kind:
        case "JPEG" | "MPO":
            return _END_OF_JPEG in data[-_BEHIND_JPEG:] and (len(data) > _BEHIND_JPEG or _ends(data, _END_OF_JPEG))
        case "GIF":
            return _ends(data, _END_OF_GIF)
    return True


def _ends(data: bytes, end: bytes) -> bool:
    return data.rstrip(b"\0").endswith(end)


def _unreadable(field: str) -> InvalidRequest:
    return _refused(field, "is no picture that can be read: send a whole PNG, JPEG, WebP or GIF file")


def _cut_off(field: str, kind: str) -> InvalidRequest:
    return _refused(field, f"is cut off: the file has no end ({kind})")


def _refused(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {why}", param=field)
