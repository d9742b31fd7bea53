"""What is checked of a picture's file, and that every bad one is a 400 which names the part."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from PIL import Image

from dovetail.completion import Completion, TokenBatch
from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.turn import picture_files
from dovetail.gateway.turn.picture_files import PictureLimits, checked, undecodable
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
URL = "messages[0].content[1].image_url.url"


def file(kind: str, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(out, kind, **options)
    return out.getvalue()


def frames(kind: str) -> bytes:
    first, second = (Image.new("RGB", (9, 9), color) for color in ("red", "blue"))
    out = io.BytesIO()
    first.save(out, kind, save_all=True, append_images=[second])
    return out.getvalue()


def bomb(width: int = 10_000, height: int = 10_000, rows: int = 1000) -> bytes:
    """A PNG that declares many pixels in few bytes, and has `rows` of them."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    data = zlib.compress(b"\0" * (min(height, rows) * (width // 8 + 1)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_taken_by_what_it_is(kind: str) -> None:
    data = file(kind)
    picture = checked(data, "x")
    assert (picture.data, picture.media_type) == (data, KINDS[kind])
    assert "PNG" not in repr(picture) and str(len(data)) in repr(picture)


def test_notes_behind_the_end_of_a_jpeg_are_allowed() -> None:
    large = file("JPEG", (900, 700), quality=95)
    assert checked(large + b"\0" * 99, "x").media_type == "image/jpeg"
    assert checked(large + b"note", "x").media_type == "image/jpeg"


def test_a_phones_second_picture_is_no_animation() -> None:
    assert checked(frames("MPO"), "x").media_type == "image/jpeg"


def webp(kind: bytes, payload: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(payload)) + payload
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


#: WebP files that declare 16,383 times 16,383 pixels in a few bytes. Pillow would make room for them: two gigabytes.
WEBP_BOMBS = {
    "VP8X": webp(b"VP8X", bytes(4) + (16_382).to_bytes(3, "little") * 2),
    "VP8L": webp(b"VP8L", b"\x2f" + ((16_382 << 14) | 16_382).to_bytes(4, "little") + bytes(9)),
    "VP8": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + (16_383).to_bytes(2, "little") * 2 + bytes(9)),
}


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0MM"}, {"quality": 5}], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (300, 17)])
def test_the_size_of_a_webp_is_what_pillow_reads(options: dict[str, Any], size: tuple[int, int]) -> None:
    data = file("WEBP", size, **options)
    pixels = size[0] * size[1]
    assert checked(data, "x", PictureLimits(pixels=pixels)).media_type == "image/webp"
    with pytest.raises(InvalidRequest, match="too many pixels"):
        checked(data, "x", PictureLimits(pixels=pixels - 1))


BAD = {
    **{f"a {kind} of 268 megapixels": (data, "has too many pixels") for kind, data in WEBP_BOMBS.items()},
    "a WebP that is none": (webp(b"VP9 ", bytes(40)), "is no picture"),
    "a WebP without its signature": (webp(b"VP8L", bytes(40)), "is no picture"),
    "a WebP's header alone": (file("WEBP")[:24], "is no picture"),
    "text": (b"hello", "is no picture"),
    "nothing": (b"", "is no picture"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no picture"),
    "bmp": (file("BMP"), "is no picture"),
    "a header alone": (file("PNG")[:20], "is no picture"),
    "100 megapixels": (bomb(), "has too many pixels: at most 50,000,000"),
    "more than Pillow opens": (bomb(60_000, 60_000), "too many pixels"),
    "animated gif": (frames("GIF"), "is animated"),
    "animated webp": (frames("WEBP"), "is animated"),
    "animated png": (frames("PNG"), "is animated"),
    "damaged png": (file("PNG")[:200] + b"x" + file("PNG")[201:], "is no picture"),
    **{f"cut {kind}": (file(kind)[:-30], "cut off|is no picture") for kind in KINDS},
    "half of a large jpeg": (file("JPEG", (900, 700))[:40_000], "cut off"),
}


@pytest.mark.parametrize(("data", "why"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        checked(data, URL)
    assert refused.value.param == URL and refused.value.message.startswith(URL)


def test_100_megapixels_are_refused_in_10_kilobytes() -> None:
    assert len(bomb()) < 10_000


def test_a_file_has_a_limit_on_its_size() -> None:
    with pytest.raises(InvalidRequest, match="bytes: at most 99"):
        checked(file("PNG"), "x", PictureLimits(size=99))


# -- through the gateway ----------------------------------------------------------------------------------------------


@pytest.fixture
def sees(engine: ScriptedEngine, tok: Tokenizer) -> ScriptedEngine:
    engine.ids = ids_of(Message("ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    return engine


def body(*files: bytes, text: str = "see") -> dict[str, Any]:
    urls = ["data:image/png;base64," + base64.b64encode(data).decode() for data in files]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]}


@pytest.mark.anyio
@pytest.mark.parametrize("data", [each for each, _ in BAD.values()], ids=BAD)
async def test_it_is_a_400_that_names_the_part(sees: ScriptedEngine, tok: Tokenizer, data: bytes) -> None:
    async with in_process(sees, tok) as client:
        answer = await client.post("/v1/chat/completions", json=body(data))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == URL
    assert not sees.seen


@pytest.mark.anyio
async def test_messages_says_that_it_could_not_process_the_image(sees: ScriptedEngine, tok: Tokenizer) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(bomb()).decode()}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    async with in_process(sees, tok) as client:
        answer = await client.post("/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": [turn]})
    message = answer.json()["error"]["message"]
    assert message.startswith("messages.0.content.0.image.source.base64: Could not process image: has too many pixels")


@pytest.mark.anyio
async def test_200_pictures_are_too_many(sees: ScriptedEngine, tok: Tokenizer) -> None:
    data = file("PNG", (2, 2))
    async with in_process(sees, tok) as client:
        answer = await client.post("/v1/chat/completions", json=body(*[data] * 200))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "messages[0].content[101]" and "a request may have 100" in error["message"]


@pytest.mark.anyio
async def test_a_body_with_pictures_has_a_limit_of_its_own(sees: ScriptedEngine, tok: Tokenizer) -> None:
    settings = Settings(served_model_name=MODEL, max_body_bytes=20_000, picture_body_bytes=400_000)
    small, large = file("PNG", (200, 100)), file("PNG", (500, 300))
    assert 20_000 < len(small) * 4 / 3 < 400_000 < len(large) * 4 / 3 * 2
    async with in_process(sees, tok, settings) as client:
        path = "/v1/chat/completions"
        assert (await client.post(path, json=body(small))).status_code == 200
        assert (await client.post(path, json=body(small, text="a " * 11_000))).status_code == 413
        assert (await client.post(path, json=body(large, large))).status_code == 413
        assert (await client.post(path, json=body(text="a " * 11_000))).status_code == 413


# -- a picture that only the engine finds to be damaged ---------------------------------------------------------------


def damaged(kind: str) -> bytes:
    """A file with a whole header and its end, whose pixels are none."""
    if kind == "PNG":
        return bomb(300, 200, rows=5)
    data = file(kind, (300, 200))
    start = {"WEBP": 30, "GIF": 900}[kind]
    return data[:start] + b"\xff" * (len(data) - start - 9) + data[-9:]


class Refusing(ScriptedEngine):
    """It refuses every request, as vLLM does if it cannot read a picture."""

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        self.seen.append(completion)
        raise InvalidRequest("the engine refused this: Failed to load image: broken data stream")
        yield


@pytest.fixture
def refusing(tok: Tokenizer) -> ScriptedEngine:
    engine = Refusing(tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    return engine


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
async def test_it_is_named_once_the_engine_has_refused_it(
    refusing: ScriptedEngine, tok: Tokenizer, kind: str, stream: bool
) -> None:
    async with in_process(refusing, tok) as client:
        asked = body(file("PNG"), damaged(kind), file("GIF")) | {"stream": stream}
        answer = await client.post("/v1/chat/completions", json=asked)
    assert refusing.seen, "nothing is decoded before"
    error = answer.json()["error"]
    field = "messages[0].content[2].image_url.url"
    assert (answer.status_code, error["param"]) == (400, field)
    assert error["message"] == f"{field} is damaged: it cannot be decoded"


@pytest.mark.anyio
async def test_messages_names_it_in_the_words_of_anthropic(refusing: ScriptedEngine, tok: Tokenizer) -> None:
    data = base64.b64encode(damaged("PNG")).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    async with in_process(refusing, tok) as client:
        answer = await client.post("/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": [turn]})
    assert answer.status_code == 400
    start = "messages.0.content.0.image.source.base64: Could not process image: it is damaged"
    assert answer.json()["error"]["message"].startswith(start)


@pytest.mark.anyio
@pytest.mark.parametrize("files", [(), (file("PNG"), file("JPEG"))], ids=["no picture", "whole ones"])
async def test_other_refusals_stay_as_they_are(
    refusing: ScriptedEngine, tok: Tokenizer, files: tuple[bytes, ...]
) -> None:
    async with in_process(refusing, tok) as client:
        answer = await client.post("/v1/chat/completions", json=body(*files))
    assert answer.status_code == 400 and "the engine refused this: Failed to load image" in answer.text


def test_few_pixels_are_decoded_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_files, "_MOST_DECODED", 300 * 200)
    whole, broken = (checked(data, "x") for data in (file("JPEG", (300, 200)), damaged("PNG")))
    assert undecodable([broken]) is not None
    assert undecodable([whole, broken]) is None
