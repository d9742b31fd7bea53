"""Recordings of requests with pictures: their digests, and with an option their files."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.events import Message
from dovetail.gateway.observe import capture
from dovetail.gateway.observe.captured_bodies import MOST_BODY, without_pictures
from dovetail.gateway.observe.recording import RecordedPicture, Recording, encode
from dovetail.gateway.observe.redaction import redacted
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import ScriptedEngine, ids_of
from tests.gateway.test_picture_files import body, file
from tests.gateway.test_recorded_requests import recording_when
from tests.gateway.test_recordings import files, only, recorded

pytestmark = pytest.mark.anyio

SMALL = file("PNG", (9, 9))
# Above what a recording keeps of a body.
LARGE = file("PNG", (800, 600))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def recording_of(
    engine: ScriptedEngine, tok: Tokenizer, folder: Path, body: dict[str, Any], status: int = 200, **options: bool
) -> Recording:
    engine.ids = ids_of(Message("ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    async with recorded(engine, tok, folder, **options) as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == status
    return only(folder)


@pytest.mark.parametrize("keep", [False, True])
async def test_a_recording_has_the_digests_and_if_wanted_the_files(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, keep: bool
) -> None:
    assert len(LARGE) > MOST_BODY
    sent = body(SMALL, LARGE)
    it = await recording_of(engine, tok, tmp_path, sent, pictures=keep)
    assert it.pictures == tuple(
        RecordedPicture(sha256(data), "image/png", len(data), data if keep else None) for data in (SMALL, LARGE)
    )
    request = json.loads(bytes(it.request))
    parts = request["messages"][0].pop("content")
    assert [part["image_url"]["url"] for part in parts[1:]] == [
        f"data:image/png;base64,sha256:{sha256(data)}" for data in (SMALL, LARGE)
    ]
    del sent["messages"][0]["content"]
    assert request == sent and parts[0]["text"] == "see"
    assert not it.left_out


async def test_the_block_of_messages_has_its_digest_too() -> None:
    data = base64.b64encode(SMALL).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    for separators in ((",", ":"), (", ", ": ")):
        written = json.dumps(block, separators=separators).replace("/", "\\/")
        kept = json.loads(without_pictures(written.encode()))
        assert kept["source"].pop("data") == f"sha256:{sha256(SMALL)}"
        assert kept == {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}


@pytest.mark.parametrize("text", ["base64," + "A" * 63, "base64, " + "A" * 99, '{"data": "é"}', "A" * 999])
async def test_other_text_stays(text: str) -> None:
    assert without_pictures(text.encode()) == text.encode()


async def test_what_is_no_base64_has_the_digest_of_its_text() -> None:
    text = b"A" * 65
    assert without_pictures(b"base64," + text) == b"base64,sha256:" + sha256(text).encode()


async def test_a_redacted_recording_does_not_tell_which_picture(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    it = await recording_of(engine, tok, tmp_path, body(SMALL), redact=True)
    assert it.pictures == (RecordedPicture("", "image/png", len(SMALL)),)
    assert sha256(SMALL) not in bytes(it.request).decode()
    kept = redacted(msgspec.structs.replace(it, pictures=(RecordedPicture("d", "image/png", 3, b"abc"),)))
    assert kept.pictures[0].data is None


async def test_files_go_first_where_there_is_no_room(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    it = await recording_of(engine, tok, tmp_path, body(LARGE), pictures=True)
    small = msgspec.json.decode(encode(it, 100_000), type=Recording)
    assert small.left_out == ("pictures",)
    assert small.pictures == (RecordedPicture(sha256(LARGE), "image/png", len(LARGE)),)
    assert small.steps == it.steps and bytes(small.request) == bytes(it.request)


async def test_a_request_that_is_refused_is_recorded_without_its_picture(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    it = await recording_of(engine, tok, tmp_path, body(LARGE[:-99]), 400, pictures=True)
    assert it.error is not None and not it.pictures
    assert sha256(LARGE[:-99]) in bytes(it.request).decode()


@pytest.mark.parametrize("asks", [True, False])
async def test_where_few_requests_are_recorded_the_others_pictures_are_not_read(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    read: list[int] = []
    whole = capture.without_pictures
    monkeypatch.setattr(capture, "without_pictures", lambda data: read.append(len(data)) or whole(data))
    engine.ids = ids_of(Message("ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    async with recording_when(engine, tok, tmp_path, "requested") as client:
        sent = body(LARGE) | ({"dovetail": {"recording": True}} if asks else {})
        assert (await client.post("/v1/chat/completions", json=sent)).status_code == 200
    assert bool(read) is bool(files(tmp_path)) is asks
