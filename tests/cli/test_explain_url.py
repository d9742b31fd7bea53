"""`dovetail explain REQUEST.json --url URL`, against real servers."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.observe import recording_folder
from dovetail.gateway.observe.recording import decode
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.inspect import asked_recording
from dovetail.inspect.asked_recording import api_of
from dovetail.inspect.routes import inspect_routes
from dovetail.tokens import Tokenizer
from tests.cli.conftest import Dovetail
from tests.demo_server import served
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_recordings import CALL, TOOL
from tests.tools import taking, tool

WEATHER = tool("get_weather", taking({"city": {"type": "string"}}, "city"))
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    return written(tmp_path, ASKED)


def written(folder: Path, body: Any, name: str = "request.json") -> Path:
    (folder / name).write_text(json.dumps(body))
    return folder / name


def shown_json(dovetail: Dovetail, file: Path, url: str, *more: str) -> bytes:
    done = dovetail("explain", file, "--url", url, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.dumps(json.loads(done.stdout)["recording"]).encode()


# -- a server that records ---------------------------------------------------------------------------------------------


def recording_server(engine: ScriptedEngine, tok: Tokenizer, folder: Path, **more: Any) -> Starlette:
    options = RecordingOptions(folder, when="requested")
    settings = Settings(served_model_name=MODEL, recordings=options, **more)
    return create_app(engine, KimiK25(), tok, settings, more=inspect_routes(settings, tok))


def test_the_servers_own_recording_is_shown(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(small_tokenizer)
    engine.ids, engine.sizes, engine.refused = ids_of(CALL, small_tokenizer), (2,), (5,)
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL], "stream": True, "stream_options": {}}
    file, key = written(tmp_path, body), "k" * 20
    with served(recording_server(engine, small_tokenizer, tmp_path / "recordings", api_key=key)) as url:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        shown = decode(shown_json(dovetail, file, url), "shown")
        page = dovetail("explain", file, "--url", url, "--all")
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        refused = dovetail("explain", file, "--url", url)
    assert json.loads(bytes(shown.request))["dovetail"] == {"recording": True} and not shown.left_out
    assert len(shown.steps) == len(engine.ids) // 2 and shown.grammar and shown.format == "kimi_k25"
    assert "allowed: " in page.stdout and "~" in page.stdout and "the model called look_up" in page.stdout
    assert refused.returncode == 2 and "401" in refused.stderr


def test_a_recording_that_does_not_come_is_an_error(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's disk is full."""

    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(asked_recording, "_TRIES", 2)
    monkeypatch.setattr(recording_folder.os, "replace", full)
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(CALL, small_tokenizer)
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
    with served(recording_server(engine, small_tokenizer, tmp_path / "recordings")) as url:
        done = dovetail("explain", written(tmp_path, body), "--url", url)
    assert done.returncode == 2 and "wrote no recording" in done.stderr and done.stderr.count("\n") == 1


def test_a_server_that_does_not_record_is_refused_in_one_line(
    dovetail: Dovetail, small_tokenizer: Tokenizer, request_file: Path
) -> None:
    settings = Settings(served_model_name=MODEL)
    with served(create_app(ScriptedEngine(small_tokenizer), KimiK25(), small_tokenizer, settings)) as url:
        done = dovetail("explain", request_file, "--url", url)
    assert done.returncode == 2 and "does not run with `serve --record`" in done.stderr


# -- other APIs -------------------------------------------------------------------------------------------------------


PROMPT = "Please get the weather for city Paris."
BODIES: dict[str, Any] = {
    "messages": {
        "max_tokens": 60,
        "temperature": 0,
        "messages": [{"role": "user", "content": PROMPT}],
        "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
    },
    "responses": {
        "max_output_tokens": 60,
        "temperature": 0,
        "input": PROMPT,
        "tools": [{"type": "function", **WEATHER["function"]}],
    },
    "completions": {"max_tokens": 6, "temperature": 0, "prompt": "Hello"},
}


@pytest.mark.parametrize("api", BODIES)
def test_the_servers_recording_of_another_api_is_shown(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path, api: str
) -> None:
    """It is found by the answer's id."""
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message(content="ok", reasoning="" if api == "completions" else "hm"), small_tokenizer)
    body = {name: value for name, value in BODIES[api].items() if name != "tools"} | {"model": MODEL}
    folder = tmp_path / "recordings"
    with served(recording_server(engine, small_tokenizer, folder)) as url:
        shown = decode(shown_json(dovetail, written(tmp_path, body), url, "--api", api), "shown")
        file = next(path for path in folder.iterdir() if path.name.endswith("recording.json"))
        refused = dovetail("explain", written(tmp_path, body | {"temperature": 9}), "--url", url, "--api", api)
    assert (shown.api, shown.left_out) == (api, ()) and len(shown.steps) > 1 and shown.id in file.name
    assert refused.returncode == 2 and "answered 400: " in refused.stderr and "temperature" in refused.stderr


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": []}, "chat"),
        ({"messages": [], "system": "a"}, "messages"),
        ({"messages": [], "tools": [{"name": "a", "input_schema": {}}]}, "messages"),
        ({"messages": [3], "tools": [WEATHER, 3]}, "chat"),
        ({"messages": 3, "tools": 3}, "chat"),
        ({"input": "a"}, "responses"),
        ({"prompt": "a"}, "completions"),
        ({}, None),
    ],
)
def test_the_api_of_a_request_is_told_by_its_fields(body: Any, api: str | None) -> None:
    assert api_of(body) == api


def test_what_cannot_be_sent_is_refused_in_one_line(dovetail: Dovetail, request_file: Path) -> None:
    done = dovetail("explain", request_file)
    assert done.returncode == 2 and "--url is missing" in done.stderr
    done = dovetail("explain", request_file, "--url", "http://127.0.0.1:1")
    assert done.returncode == 2 and "cannot be reached" in done.stderr
