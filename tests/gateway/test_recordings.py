"""`serve --record` writes what happened to each request, within limits, and never disturbs the request."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from starlette.requests import ClientDisconnect

from dovetail.errors import EngineError, InvalidRequest
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Message, Reasoning, fold
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.observe import capture, recording_folder
from dovetail.gateway.observe.capture import Capture, Captures
from dovetail.gateway.observe.recording import KIND, VERSION, RecordedStep, Recording, decode, encode, joined
from dovetail.gateway.observe.recording_folder import SUFFIX, RecordingFolder, RecordingLimits, RecordingOptions
from dovetail.gateway.observe.redaction import redacted
from dovetail.gateway.observe.request_report import APIS, RequestReport
from dovetail.tokens import Tokenizer
from tests.gateway.recording_schema import SCHEMA_FILE, recording_schema
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_access_log import REQUESTS, SECRET, WORDS
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

SCHEMA = json.loads(SCHEMA_FILE.read_text())
TOOL = tool("look_up", taking({"word": {"type": "string"}}))
CALL = Message(reasoning="hmm", calls=(Call("functions.look_up:0", "look_up", '{"word": "ok"}'),))


@asynccontextmanager
async def recorded(
    engine: ScriptedEngine, tok: Tokenizer, folder: Path, *, redact: bool = False, pictures: bool = False, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """The gateway, which records into `folder`; all recordings are written at its end."""
    options = RecordingOptions(folder, redact=redact, pictures=pictures)
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, recordings=options, **more))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client,
    ):
        yield client


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def only(folder: Path) -> Recording:
    (path,) = files(folder)
    return decode(path.read_bytes(), path.name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_request_of_each_api_is_recorded(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, api: str, stream: bool
) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm" if api != "completions" else ""), tok)
    engine.sizes, engine.cached = (3,), 2
    path, body = REQUESTS[api]
    body = body | {"model": MODEL, "stream": stream, "temperature": 0.5}
    async with recorded(engine, tok, tmp_path, api_key=SECRET) as client:
        response = await client.post(
            path, json=body, headers={"authorization": f"Bearer {SECRET}", "x-request-id": "mine"}
        )
    assert response.status_code == 200
    it = only(tmp_path)
    assert (it.kind, it.version, it.api, it.model, it.request_id) == (KIND, VERSION, api, MODEL, "mine")
    assert json.loads(bytes(it.request)) == body
    assert SECRET not in files(tmp_path)[0].read_text()
    assert it.prompt is not None and it.prompt.ids == engine.seen[0].prompt and it.prompt.segments is not None
    assert sum(segment.tokens for segment in it.prompt.segments) == it.prompt.tokens == len(it.prompt.ids)
    assert WORDS in "".join(segment.text for segment in it.prompt.segments)
    assert [token.id for step in it.steps for token in step.tokens] == list(engine.ids)
    assert [(step.drafted, step.accepted, step.forced) for step in it.steps] == [
        (3, len(step.tokens) - 1, 1) for step in it.steps
    ]
    assert it.steps[0].cached == 2 and it.steps[-1].finish == "stop"
    (message,) = it.messages
    events = [event for step in it.steps for event in step.events]
    assert (message.content, message.reasoning) == (fold(events).content, fold(events).reasoning)
    assert it.message == message and fold(it.events) == fold(events)
    keys = json.loads(files(tmp_path)[0].read_bytes())
    assert {"request", "repairs", "prompt", "steps", "events", "message"} <= keys.keys()
    Draft202012Validator(SCHEMA).validate(keys)
    assert "ok" in message.content
    assert it.options is not None and it.options.sampling["temperature"] == 0.5 and it.error is None
    times = [it.times[name] for name in ("prepared", "admitted", "first", "last", "ended")]
    assert times == sorted(times) and times[0] > 0
    assert [step.at for step in it.steps] == sorted(step.at for step in it.steps)
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


async def test_calls_grammar_checks_and_repairs_are_recorded(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(CALL, tok)
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call("x", '{"word": "é"}')]},
        {"role": "tool", "tool_call_id": "x", "content": "c"},
    ]
    async with recorded(engine, tok, tmp_path) as client:
        await client.post("/v1/chat/completions", json={"model": MODEL, "messages": history, "tools": [TOOL]})
    it = only(tmp_path)
    assert it.grammar is not None and "look_up" in it.grammar
    assert [(check.tool, check.fault) for step in it.steps for check in step.checks] == [("look_up", None)]
    assert it.repairs and all(repair.where.startswith("messages") for repair in it.repairs)
    assert it.messages[0].calls[0].name == "look_up" and it.steps[-1].finish == "tool_calls"
    (made,) = CALL.calls
    told = (CallStart(0, made.id, made.name), CallArguments(0, made.arguments), CallEnd(0))
    assert it.events == (Reasoning("hmm"), *told)  # each text is whole
    Draft202012Validator(SCHEMA).validate(json.loads(files(tmp_path)[0].read_bytes()))
    assert {"render", "compile"} <= set(it.stages) and it.options is not None and it.options.tools == 1


def test_pieces_of_one_text_are_joined_and_others_are_not() -> None:
    events = [
        *(Reasoning("a"), Reasoning("b"), Content("c"), Reasoning("d"), Defect("x"), Defect("x")),
        *(
            CallStart(0, "i", "f"),
            CallArguments(0, "{"),
            CallArguments(0, "}"),
            CallArguments(1, "["),
            CallEnd(0),
            CallEnd(0),
        ),
    ]
    assert joined(events) == (
        *(Reasoning("ab"), Content("c"), Reasoning("d"), Defect("x"), Defect("x")),
        *(CallStart(0, "i", "f"), CallArguments(0, "{}"), CallArguments(1, "["), CallEnd(0), CallEnd(0)),
    )
    assert joined([]) == ()


def test_the_schema_in_docs_is_that_of_recordings() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == recording_schema(), (
        "write it: python -m tests.gateway.recording_schema"
    )


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


HIDDEN = ["unspoken", "c0nfidential", "hushhush", "4242424242", "private.person@example.org"]


async def test_a_redacted_recording_has_no_text(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(Message(content=HIDDEN[0], reasoning=HIDDEN[1], calls=CALL.calls), tok)
    body = {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": HIDDEN[2]},
            {"role": "assistant", "content": None, "tool_calls": [call(HIDDEN[1], json.dumps({"word": HIDDEN[2]}))]},
            {"role": "tool", "tool_call_id": HIDDEN[1], "content": HIDDEN[0]},
        ],
        "tools": [TOOL],
        "stop": [HIDDEN[3], "never"],
        "metadata": {HIDDEN[4]: int(HIDDEN[3])},
        "temperature": 0.25,
        "seed": 7,
    }
    async with recorded(engine, tok, tmp_path, redact=True) as client:
        await client.post("/v1/chat/completions", json=body, headers={"x-request-id": HIDDEN[0]})
        await client.post("/v1/chat/completions", json={"model": HIDDEN[0], "messages": []})
        await client.post("/v1/chat/completions", content=HIDDEN[0], headers={"content-type": "application/json"})
        await client.post("/v1/completions", json={"model": MODEL, "prompt": [1, 2], "stop": [HIDDEN[0]]})
    assert len(files(tmp_path)) == 4
    for path in files(tmp_path):
        text = path.read_text()
        assert not [hidden for hidden in HIDDEN if hidden in text]
        it = decode(text.encode(), path.name)
        assert it.redacted and (it.prompt is None or it.prompt.ids is None)
        assert all(token.control or (token.id, token.text) == (None, "") for step in it.steps for token in step.tokens)
    it = next(
        it for it in (decode(path.read_bytes(), "f") for path in files(tmp_path)) if it.options and it.messages[0].calls
    )
    assert it.messages[0].calls[0].name == "look_up" and it.messages[0].content == "[8 characters]"
    assert it.options is not None and it.options.sampling["temperature"] == 0.25


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.text(alphabet="qxyz", min_size=5))
@settings(max_examples=30)
def test_redaction_leaves_no_string_of_any_request(value: Any, secret: str) -> None:
    body = msgspec.json.encode({"messages": [value, secret, {secret + "é": secret}], "other": {"deep": [123456789]}})
    it = redacted(Recording(id="a", request_id=secret, api="chat", model=secret, began="", request=msgspec.Raw(body)))
    text = msgspec.json.encode(it).decode()
    assert secret not in text and "123456789" not in text


async def test_a_refused_request_is_recorded_with_its_error(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    async with recorded(engine, tok, tmp_path) as client:
        bad = await client.post("/v1/chat/completions", content=b"{\xff", headers={"content-type": "application/json"})
        odd = await client.post(
            "/v1/chat/completions",
            content=b'{"model": "\\ud800", "messages": []}',
            headers={"content-type": "application/json"},
        )
    assert (bad.status_code, odd.status_code) == (400, 404) or bad.status_code == odd.status_code == 400
    first, second = (decode(path.read_bytes(), path.name) for path in files(tmp_path))
    for it in (first, second):
        assert it.error is not None and it.error.message and it.prompt is None and not it.steps
    assert {bytes(it.request)[:1] for it in (first, second)} <= {b'"', b"{"}


async def test_an_answer_that_fails_is_recorded_up_to_there(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message(content="one two three", reasoning="hm"), tok)

    async def fail(number: int) -> None:
        if number == 2:
            raise EngineError("out of memory")

    engine.before = fail
    path, body = REQUESTS["chat"]
    async with recorded(engine, tok, tmp_path) as client:
        await client.post(path, json=body | {"model": MODEL})
    it = only(tmp_path)
    assert it.error is not None and (it.error.type, it.error.message) == ("EngineError", "out of memory")
    assert len(it.steps) == 2 and it.steps[-1].finish is None


async def test_other_errors_show_no_message_and_cancelled_requests_are_disconnected() -> None:
    assert capture._error(ValueError("internal")).message == ""
    assert capture._error(asyncio.CancelledError()).type == capture._error(ClientDisconnect()).type == "disconnected"


async def test_many_steps_and_a_large_body_are_left_out(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_MOST_STEPS", 2)
    monkeypatch.setattr(capture, "MOST_BODY", 10)
    engine.ids = ids_of(Message(content="one two three", reasoning="hm"), tok)
    async with recorded(engine, tok, tmp_path) as client:
        await client.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"], "max_tokens": 99})
    it = only(tmp_path)
    assert bytes(it.request) == b"null" and not it.messages and len(it.steps) == 4  # two steps, and two ends
    assert it.left_out[:2] == ("request", "prompts after the first") and it.left_out[2].endswith(" steps")


def test_a_recording_that_is_too_large_loses_its_parts_in_order() -> None:
    whole = Recording(
        id="a",
        request_id="b",
        api="chat",
        model="m",
        began="",
        grammar="g" * 500,
        request=msgspec.Raw(b'"%s"' % (b"r" * 500)),
        events=(Content("e" * 500),),
    )
    size = len(msgspec.json.encode(whole))
    assert decode(encode(whole, size), "f").left_out == ()
    assert decode(encode(whole, size - 1), "f").left_out == ("grammar",)
    least = decode(encode(whole, 1), "f")
    assert least.left_out == ("grammar", "request", "prompt", "steps", "events") and not least.events
    assert bytes(least.request) == b"null"


async def test_nothing_is_gathered_once_recording_has_stopped(tmp_path: Path) -> None:
    captures = Captures(RecordingOptions(tmp_path))
    report = RequestReport(method="POST", path="/", id="a", peer="")
    assert type(await captures.begin(b"{}", report)) is Capture
    captures._folder.stopped = True
    assert await captures.begin(b"{}", report) is None


def test_details_of_defects_are_redacted() -> None:
    events = (Defect("stray_marker", "secret"), CallEnd(0))
    step = RecordedStep(0, 0.0, (), None, 0, 0, None, events)
    it = Recording(id="a", request_id="b", api="chat", model="m", began="", steps=(step,))
    assert redacted(it).steps[0].events == (Defect("stray_marker", "[6 characters]"), CallEnd(0))


# The folder.


def put(folder: RecordingFolder, count: int, size: int = 10) -> None:
    for number in range(count):
        folder.put(f"{number:05}", lambda: b"x" * size)


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 300))
@settings(max_examples=20)
def test_the_folder_stays_within_its_limits(tmp_path_factory: Any, most: int, count: int, size: int) -> None:
    path = tmp_path_factory.mktemp("recordings")
    folder = RecordingFolder(path, RecordingLimits(most, size))
    put(folder, count)
    folder.close()
    assert len(files(path)) <= most and sum(file.stat().st_size for file in files(path)) <= max(size, 10)
    assert not count or files(path)[-1].name.startswith(f"{count - 1:05}")  # the newest is there


def test_old_recordings_go_and_other_files_stay(tmp_path: Path) -> None:
    old, unfinished, other, fresh = (
        tmp_path / name for name in (f"a{SUFFIX}", f".b{SUFFIX}.part", "c.json", f".d{SUFFIX}.part")
    )
    for path in (old, unfinished, other, fresh):
        path.write_text("x")
        if path is not fresh:
            os.utime(path, (0, 0))
    folder = RecordingFolder(tmp_path, RecordingLimits())
    put(folder, 1)
    folder.close()
    assert not old.exists() and not unfinished.exists() and other.exists() and fresh.exists()


async def test_a_full_disk_stops_recording_with_one_line_and_serving_goes_on(
    engine: ScriptedEngine,
    tok: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recording_folder.os, "replace", full)
    engine.ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    path, body = REQUESTS["chat"]
    with caplog.at_level(logging.WARNING, "dovetail.gateway"):
        async with recorded(engine, tok, tmp_path) as client:
            for _ in range(3):
                response = await client.post(path, json=body | {"model": MODEL})
                assert response.status_code == 200 and "ok" in response.text
    assert list(tmp_path.iterdir()) == []  # no piece of a file either
    (line,) = caplog.messages
    assert "recording stops" in line and os.strerror(errno.ENOSPC) in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is there on Linux only")
def test_a_device_without_room_stops_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a real device, in place of the folder's files."""
    real_open = os.open
    monkeypatch.setattr(recording_folder.os, "open", lambda *_: real_open("/dev/full", os.O_WRONLY))
    folder = RecordingFolder(tmp_path, RecordingLimits())
    put(folder, 3, size=1 << 20)
    folder.close()
    assert folder.stopped and list(tmp_path.iterdir()) == []


def test_recordings_that_come_too_fast_are_dropped_and_one_that_fails_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording_folder, "_MOST_WAITING", 2)
    folder = RecordingFolder(tmp_path, RecordingLimits())
    go = threading.Event()

    def fails() -> bytes:
        go.wait(10)
        raise ValueError("a bug")

    folder.put("a", fails)
    put(folder, 3)
    go.set()
    folder.close()
    assert len(files(tmp_path)) == 1 and not folder.stopped
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "2 recordings were dropped" in caplog.messages[1]


def test_a_folder_that_stopped_takes_no_more(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path / "deep" / "folder", RecordingLimits())
    assert (tmp_path / "deep" / "folder").stat().st_mode & 0o777 == 0o700
    folder.stopped = True
    put(folder, 1)
    folder.close()
    assert files(tmp_path / "deep" / "folder") == []


def test_a_request_that_ends_after_the_server_is_not_recorded(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path, RecordingLimits())
    put(folder, 1)
    folder.close()
    put(folder, 2)
    assert len(files(tmp_path)) == 1


# Files that are no recordings.


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off"),
        (b'{"kind": "dovetail recording", "version": 1, "id": "a', "cut off"),
        (b'{"kind": "\xff', "cut off"),
        (b"[]", "no recording"),
        (b'{"messages": []}', "`kind`"),
        (b'{"kind": "dovetail recording", "version": 99}', "version 99"),
        (b'{"kind": "dovetail recording", "version": 1}', "`id`"),
        (b'{"kind": "dovetail recording", "version": 1, "x": ' + b"[" * 100_000, "no"),
    ],
)
def test_other_files_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match="FILE") as refusal:
        decode(data, "FILE")
    assert words in refusal.value.message


@given(st.integers(0, 200))
def test_a_recording_that_is_cut_off_anywhere_is_refused(at: int) -> None:
    data = msgspec.json.encode(Recording(id="a", request_id="b", api="chat", model="m", began=""))
    with pytest.raises(InvalidRequest):
        decode(data[: min(at, len(data) - 1)], "FILE")
