"""`/inspect` over HTTP: when it is served, to whom, and what a browser may do with it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.keys import ApiKey, Keyring, digest_of
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.gateway.records.record import model_digest
from dovetail.inspect import routes
from dovetail.inspect.listing import Recordings
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine
from tests.inspect.files import recording, write

pytestmark = pytest.mark.anyio

PAGE = Path(routes.__file__).parent / "page"
KEY = "the-operators"
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b[31m</pre>" + "w" * 10**6


@asynccontextmanager
async def inspected(
    engine: ScriptedEngine, tok: Tokenizer, folder: Path | None, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    options = None if folder is None else RecordingOptions(folder)
    settings = Settings(served_model_name=MODEL, recordings=options, **more)
    app = create_app(engine, KimiK25(), tok, settings, more=routes.inspect_routes(settings, tok))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_without_recording_there_is_no_page(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with inspected(engine, tok, None) as client:
        for path in ("/inspect", "/inspect/main.js", "/inspect/recordings", "/inspect/server"):
            assert (await client.get(path)).status_code == 404
        assert "/inspect" not in (await client.get("/")).text


async def test_the_page_and_all_that_it_loads_are_served_with_a_strict_policy(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    async with inspected(engine, tok, tmp_path) as client:
        page = await client.get("/inspect")
        assert page.headers["content-type"].startswith("text/html")
        loaded = {f"/{path}" for path in re.findall(r'(?:src|href)="(inspect/[^"]+)"', page.text)}
        for file in PAGE.glob("*.js"):
            loaded |= {f"/inspect/{name}" for name in re.findall(r'from "\./([^"]+)"', file.read_text())}
        assert loaded == {f"/inspect/{file.name}" for file in PAGE.iterdir() if file.suffix in (".js", ".css", ".svg")}
        for path in ("/inspect", *loaded):
            response = await client.get(path)
            headers = response.headers
            assert response.status_code == 200
            policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
            assert policy.pop("require-trusted-types-for") == "'script'"
            assert policy.pop("img-src") == "'self' data:"  # data: is a picture that a recording has
            assert set(policy.values()) == {"'none'", "'self'"} and policy["default-src"] == "'none'"
            assert policy["frame-ancestors"] == "'none'" and headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_the_page_names_no_other_origin_and_makes_no_html_of_texts() -> None:
    for file in PAGE.iterdir():
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert not re.search(r"""https?://(?!www\.w3\.org/2000/svg)|["']//""", text)
        if file.suffix == ".html":
            assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
            assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


async def test_data_needs_the_operators_key(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    write(tmp_path, "a", recording(), 1)
    keyring = Keyring(
        [
            ApiKey(name="alice", digest=digest_of("alices")),
            ApiKey(name="ops", digest=digest_of("operators"), scope="inspect"),
            ApiKey(name="prometheus", digest=digest_of("scraper"), scope="metrics"),
        ]
    )
    async with inspected(engine, tok, tmp_path, api_key=KEY, keys=keyring) as client:
        for path in ("/inspect", "/inspect/main.js", "/inspect/inspect.css"):  # the page asks for the key
            assert (await client.get(path)).status_code == 200
        for path in ("/inspect/server", "/inspect/recordings", "/inspect/recordings/a"):
            statuses = [
                (await client.get(path, headers=headers)).status_code
                for headers in (
                    {},
                    bearer("wrong"),
                    bearer("alices"),
                    bearer("scraper"),
                    bearer(KEY),
                    bearer("operators"),
                )
            ]
            assert statuses == [401, 401, 403, 403, 200, 200]
        refused = await client.get("/inspect/recordings", headers=bearer("alices"))
        assert "scope: inspect" in refused.json()["error"]["message"]
        assert (await client.get("/v1/models", headers=bearer("operators"))).status_code == 200


async def test_pages_of_other_origins_get_no_recording_even_where_they_may_call_the_api(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    write(tmp_path, "a", recording(), 1)
    async with inspected(engine, tok, tmp_path, allow_origins=("*",)) as client:
        for path in ("/inspect/recordings", "/inspect/recordings/a"):
            response = await client.get(path, headers={"origin": "https://evil.example"})
            assert response.status_code == 403 and "Good day" not in response.text


async def test_a_recording_comes_whole_and_as_json_only(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    hostile = msgspec.Raw(msgspec.json.encode({"messages": [HOSTILE]}))
    write(tmp_path, "a", recording(id=HOSTILE, model=HOSTILE, request=hostile), 1)
    async with inspected(engine, tok, tmp_path) as client:
        listed = await client.get("/inspect/recordings")
        shown = await client.get("/inspect/recordings/a")
    for response in (listed, shown):
        assert response.headers["content-type"] == "application/json"
        assert (
            response.headers["x-content-type-options"] == "nosniff" and response.headers["cache-control"] == "no-store"
        )
    assert len(listed.content) < 2000
    body = shown.json()
    assert body["recording"]["id"] == HOSTILE and json.loads(body["request"])["messages"] == [HOSTILE]
    assert body["verdict"][0]["kind"] == "answered"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/inspect/recordings/gone", 404, "there is no recording gone"),
        ("/inspect/recordings/..%2F..%2Fetc%2Fpasswd", 404, ""),
        ("/inspect/recordings?limit=0", 400, "limit is 0, and has to be 1 to 1000"),
        ("/inspect/recordings?limit=1001", 400, "limit is 1001"),
        ("/inspect/recordings?limit=many", 400, "limit is many"),
        ("/inspect/recordings?color=red", 400, "color is no parameter"),
        ("/inspect/recordings/cut", 400, "perhaps cut off"),
        ("/inspect/recordings/old", 400, "recording of version 0"),
        ("/inspect/other", 404, "is not served"),
    ],
)
async def test_bad_requests_say_what_is_wrong(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, path: str, status: int, words: str
) -> None:
    write(tmp_path, "cut", msgspec.json.encode(recording())[:100], 1)
    write(tmp_path, "old", msgspec.json.encode(recording(version=0)), 1)
    async with inspected(engine, tok, tmp_path) as client:
        response = await client.get(path)
    assert response.status_code == status and words in response.json()["error"]["message"]


async def test_only_so_many_requests_wait(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    newest = Recordings.newest

    def slow(self: Recordings, limit: int) -> Any:
        entered.set()
        release.wait(60)
        return newest(self, limit)

    monkeypatch.setattr(Recordings, "newest", slow)
    monkeypatch.setattr(routes, "_MOST_WAITING", 1)
    async with inspected(engine, tok, tmp_path) as client:
        waiting = asyncio.ensure_future(client.get("/inspect/recordings"))
        await asyncio.to_thread(entered.wait, 60)
        refused = await client.get("/inspect/recordings/a")
        assert refused.status_code == 503 and "retry-after" in refused.headers
        release.set()
        assert (await waiting).status_code == 200


async def test_the_list_of_paths_has_the_page_and_not_its_files(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    async with inspected(engine, tok, tmp_path) as client:
        paths = (await client.get("/")).json()["paths"]
    assert [path for path in paths if "/inspect" in path] == [
        "GET /inspect",
        "GET /inspect/server",
        "GET /inspect/recordings",
        "GET /inspect/recordings/{name}",
    ]


async def test_the_server_says_what_it_serves(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    async with inspected(engine, tok, tmp_path) as client:
        served = (await client.get("/inspect/server")).json()
    assert served["tokenizer"]["digest"] == model_digest("", tok).hex()
    assert served["model"] == MODEL
