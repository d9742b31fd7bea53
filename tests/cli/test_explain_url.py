"""`dovetail explain REQUEST.json --url URL`, against real servers."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dovetail.events import Call, Message
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
from tests.demo_server import demo_server, served
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_recordings import CALL, TOOL

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with demo_server() as url:
        yield url


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    return written(tmp_path, ASKED)


def written(folder: Path, body: Any, name: str = "request.json") -> Path:
    (folder / name).write_text(json.dumps(body))
    return folder / name


def test_a_request_is_sent_and_explained(dovetail: Dovetail, demo: str, request_file: Path) -> None:
    done = dovetail("explain", request_file, "--url", f"{demo}/v1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  the model called get_weather" in done.stdout.splitlines()
    assert "<|im_user|>" in done.stdout and '{"city": "Paris"}' in done.stdout and "no recording of it" in done.stdout
    shown = decode(shown_json(dovetail, request_file, demo), "shown")
    assert shown.prompt is not None and shown.prompt.ids and shown.model == "demo"
    assert shown.steps[0].drafted
    assert not shown.messages[0].content and shown.messages[0].calls[0].name == "get_weather"


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


@pytest.mark.parametrize("reason", ["full", "gone"])
def test_a_recording_that_does_not_come_is_made_of_the_answer(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The server's disk is full; or its folder has gone."""

    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(asked_recording, "_TRIES", 2)
    if reason == "full":
        monkeypatch.setattr(recording_folder.os, "replace", full)
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(CALL, small_tokenizer)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
    file = written(tmp_path, body)
    with served(recording_server(engine, small_tokenizer, tmp_path / "recordings")) as url:
        if reason == "gone":
            (tmp_path / "recordings").rmdir()
        shown = decode(shown_json(dovetail, file, url), "shown")
    assert "no recording of it" in shown.left_out[0] and shown.messages[0].calls[0].name == "look_up"


# -- other servers ----------------------------------------------------------------------------------------------------


def other_server(answer: Any, status: int = 200, models: Any = None) -> Starlette:
    """A server that is not Dovetail."""

    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        if "dovetail" in body or "logprobs" in body:
            return JSONResponse({"error": {"message": "unknown field"}}, 400)
        return JSONResponse(answer, status)

    async def listed(request: Request) -> JSONResponse:
        return JSONResponse(models or {"data": [{"id": "m"}]})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", listed)])


def test_an_answer_of_another_server_is_explained_as_far_as_it_goes(dovetail: Dovetail, request_file: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Par'}}
    message = {"role": "assistant", "content": "I see", "reasoning": "hm", "tool_calls": [call]}
    answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": None}
    with served(other_server(answer)) as url:
        done = dovetail("explain", request_file, "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "! cut at max_tokens inside call 1 (get_weather)" in done.stdout.splitlines()
    assert "I see" in done.stdout and "hm" in done.stdout


def test_what_a_server_of_ours_reports_is_shown(dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Repairs of the history, and defects of the answer."""
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(
        Message(reasoning="h", calls=(Call("functions.look_up:0", "look_up", '{"word": 5}'),)), small_tokenizer
    )
    history = [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "c"},
    ]
    body = {"model": MODEL, "messages": history, "tools": [TOOL], "dovetail": {"strict": "off"}}
    with served(create_app(engine, KimiK25(), small_tokenizer, Settings(served_model_name=MODEL))) as url:
        done = dovetail("explain", written(tmp_path, body), "--url", url)
    assert "call_id" in done.stdout and "! the reader reports schema_mismatch" in done.stdout
    assert "several steps at once" in done.stdout


def test_a_server_that_answers_render_with_something_else(dovetail: Dovetail, request_file: Path) -> None:
    async def anything(request: Request) -> JSONResponse:
        if request.url.path.endswith("/chat/completions"):
            return JSONResponse({"choices": [{"message": {}, "finish_reason": "stop"}]})
        return JSONResponse({"data": [{"id": "m"}]})

    paths = ("/v1/models", "/v1/chat/completions", "/v1/chat/completions/render")
    with served(Starlette(routes=[Route(path, anything, methods=["GET", "POST"]) for path in paths])) as url:
        done = dovetail("explain", request_file, "--url", url)
    assert done.returncode == 0 and "! the model ended its turn without any text" in done.stdout


def test_a_refused_request_is_explained(dovetail: Dovetail, demo: str, tmp_path: Path) -> None:
    done = dovetail("explain", written(tmp_path, ASKED | {"temperature": 9}), "--url", demo)
    assert (
        done.returncode == 0 and "! the request was refused: HTTP 400:" in done.stdout and "temperature" in done.stdout
    )


@pytest.mark.parametrize(
    ("answer", "status", "models", "error"),
    [
        ([], 200, None, "something else"),
        ({"choices": [{"message": "a"}]}, 200, None, "something else"),
        ({}, 200, {"data": [{"id": "a"}, {"id": "b"}]}, "serves 2 models"),
    ],
)
def test_other_answers_are_refused_in_one_line(
    dovetail: Dovetail, request_file: Path, answer: Any, status: int, models: Any, error: str
) -> None:
    with served(other_server(answer, status, models)) as url:
        done = dovetail("explain", request_file, "--url", url)
    assert done.returncode == 2 and error in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


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
    assert refused.returncode == 0 and "! the request was refused: HTTP 400:" in refused.stdout


@pytest.mark.parametrize("api", BODIES)
def test_another_api_needs_a_server_that_records(dovetail: Dovetail, demo: str, tmp_path: Path, api: str) -> None:
    done = dovetail("explain", written(tmp_path, BODIES[api]), "--url", demo)
    assert done.returncode == 2 and "does not run with `serve --record`" in done.stderr


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
