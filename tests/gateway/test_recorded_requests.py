"""Which requests are recorded, and how much memory their bodies take meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.observe import capture, recording_folder
from dovetail.gateway.observe.captured_bodies import MOST_BODY, CapturedBodies, CapturedBody
from dovetail.gateway.observe.recording import decode
from dovetail.gateway.observe.recording_folder import RecordingOptions, When
from dovetail.gateway.observe.request_report import APIS
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_access_log import REQUESTS
from tests.gateway.test_recordings import files

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def recording_when(
    engine: ScriptedEngine, tok: Tokenizer, folder: Path | None, when: When = "requested"
) -> AsyncIterator[httpx.AsyncClient]:
    engine.ids = ids_of(Message(content="ok"), tok)
    options = None if folder is None else RecordingOptions(folder, when=when)
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, recordings=options))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("when", "recorded"),
    [("always", {None: True, True: True, False: False}), ("requested", {None: False, True: True, False: False})],
)
@pytest.mark.parametrize("api", APIS)
async def test_a_request_says_whether_it_is_recorded(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, api: str, when: When, recorded: dict[bool | None, bool]
) -> None:
    path, body = REQUESTS[api]
    for asked in recorded:
        async with recording_when(engine, tok, tmp_path / str(asked), when) as client:
            body = body | {"model": MODEL, "dovetail": {} if asked is None else {"recording": asked}}
            assert (await client.post(path, json=body)).status_code == 200
        assert len(files(tmp_path / str(asked))) == recorded[asked], asked
        # Nothing is gathered where nobody records.
        assert engine.seen[-1].report_drafts is recorded[asked]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_server_that_records_nothing_refuses_a_request_to_be_recorded(
    engine: ScriptedEngine, tok: Tokenizer, path: str
) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    if path == "/v1/completions":
        body = {"model": MODEL, "prompt": "a"}
    async with recording_when(engine, tok, None) as client:
        refused = await client.post(path, json=body | {"dovetail": {"recording": True}})
        answered = await client.post(path, json=body | {"dovetail": {"recording": False}})
    assert refused.status_code == 400 and answered.status_code == 200
    error = refused.json()["error"]
    assert error["param"] == "dovetail.recording" and "serve --record DIR" in error["message"]


async def test_a_refused_request_is_recorded_if_it_asks_for_it(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    bad = {"model": MODEL, "messages": "none"}
    async with recording_when(engine, tok, tmp_path) as client:
        for marks in ({}, {"dovetail": None}, {"dovetail": {"recording": False}}, {"dovetail": {"recording": "yes"}}):
            assert (await client.post("/v1/chat/completions", json=bad | marks)).status_code == 400
        await client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
        await client.post("/v1/chat/completions", json=bad | {"dovetail": {"recording": True}})
    (file,) = files(tmp_path)
    recording = decode(file.read_bytes(), file.name)
    assert recording.error is not None and recording.error.type == "InvalidRequest"


async def test_the_record_of_an_answer_is_something_else(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    body = REQUESTS["chat"][1] | {"model": MODEL, "dovetail": {"record": True}}
    async with recording_when(engine, tok, tmp_path) as client:
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["dovetail"]["record"] and not files(tmp_path)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40))
def test_captured_bodies_never_exceed_their_room(steps: list[tuple[bool, int]]) -> None:
    room, captured = CapturedBodies(100), list[CapturedBody]()
    for releases, size in steps:
        if releases and captured:
            captured.pop(size % len(captured)).release()
        else:
            before = sum(len(each.data or b"") for each in captured)
            captured.append(room.capture(b"x" * size, 100))
            assert (captured[-1].data is not None) == (before + size <= 100)
        assert sum(len(each.data or b"") for each in captured) <= 100
    for each in captured:
        each.release()
        each.release()
    assert room.capture(b"x" * 100, 100).data is not None


def test_a_body_that_is_too_large_is_not_captured() -> None:
    assert CapturedBodies().capture(bytes(MOST_BODY), MOST_BODY).data is not None
    assert CapturedBodies().capture(bytes(MOST_BODY + 1), MOST_BODY).data is None


async def test_running_and_waiting_requests_share_the_room_and_give_it_back(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests run at a time, and there is room for the body of one: the other's recording has none."""
    path, body = REQUESTS["chat"]
    data = json.dumps(body | {"model": MODEL}).encode()
    monkeypatch.setattr(capture, "CapturedBodies", lambda: CapturedBodies(len(data) * 3 // 2))
    both = asyncio.Event()

    async def wait(number: int) -> None:
        if engine.running == 2:
            both.set()
        await both.wait()

    engine.before = wait
    headers = {"content-type": "application/json"}
    async with recording_when(engine, tok, tmp_path / "two", "always") as client:
        await asyncio.gather(*(client.post(path, content=data, headers=headers) for _ in range(2)))
    two = [decode(file.read_bytes(), file.name) for file in files(tmp_path / "two")]
    assert sorted(it.left_out for it in two) == [(), ("request",)]
    async with recording_when(engine, tok, tmp_path / "more", "always") as client:
        for number in range(3):
            await client.post(path, content=data, headers=headers)
            while len(files(tmp_path / "more")) <= number:  # it is written later, by a thread
                await asyncio.sleep(0.005)
    assert not [it for file in files(tmp_path / "more") if (it := decode(file.read_bytes(), "f")).left_out]


async def test_a_recording_that_is_dropped_gives_the_room_back(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder takes no more, as when its recordings come too fast."""
    rooms = list[CapturedBodies]()

    def one_room() -> CapturedBodies:
        rooms.append(CapturedBodies(1000))
        return rooms[0]

    monkeypatch.setattr(capture, "CapturedBodies", one_room)
    monkeypatch.setattr(recording_folder, "_MOST_WAITING", 0)
    path, body = REQUESTS["chat"]
    async with recording_when(engine, tok, tmp_path, "always") as client:
        for _ in range(3):
            assert (await client.post(path, json=body | {"model": MODEL})).status_code == 200
    assert not files(tmp_path) and rooms[0].capture(bytes(1000), 1000).data is not None
