"""`dovetail explain REQUEST.json --url URL`, `--replay` and `--raw`, against real servers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dovetail.cli import asked_recording
from dovetail.cli.asked_answers import api_of
from dovetail.cli.raw_steps import raw_steps
from dovetail.conversation import Call, Message
from dovetail.errors import InvalidRequest
from dovetail.formats.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.recordings import folder as recording_folder
from dovetail.gateway.recordings.folder import RecordingOptions
from dovetail.gateway.recordings.recording import RecordedTokenizer, Recording, decode
from dovetail.tokens import Tokenizer
from tests.cli.conftest import Dovetail
from tests.cli.test_explain import options, recording, step
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
    assert "<|im_user|>" in done.stdout and '{"city": "Paris"}' in done.stdout and "single steps" in done.stdout
    shown = decode(shown_json(dovetail, request_file, demo), "shown")
    assert shown.prompt is not None and shown.prompt.ids and shown.model == "demo"
    assert shown.steps[0].drafted and shown.steps[0].logprobs is not None
    assert "".join(token.text for token in shown.steps[0].tokens).count("get_weather") >= 1
    assert not shown.messages[0].content and shown.messages[0].calls[0].name == "get_weather"


def shown_json(dovetail: Dovetail, file: Path, url: str, *more: str) -> bytes:
    done = dovetail("explain", file, "--url", url, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.dumps(json.loads(done.stdout)["recording"]).encode()


def test_drafting_changes_nothing(dovetail: Dovetail, demo: str, request_file: Path) -> None:
    done = dovetail("explain", request_file, "--url", demo, "--replay")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["with drafts, and without", "equal, apart from ids and times"]


def recorded_by(demo: str, dovetail: Dovetail, request_file: Path) -> Recording:
    """A recording of the demo's answer, with the options that a server's own recording has."""
    shown = decode(shown_json(dovetail, request_file, demo), "shown")
    return msgspec.structs.replace(shown, options=options(sampling={"temperature": 0}))


def test_a_recording_is_sent_again_and_compared(
    dovetail: Dovetail, demo: str, request_file: Path, tmp_path: Path
) -> None:
    recorded = recorded_by(demo, dovetail, request_file)
    same = written(tmp_path, json.loads(msgspec.json.encode(recorded)), "same.recording.json")
    done = dovetail("explain", same, "--url", demo, "--replay", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == [
        {"what": "recorded, and asked for again", "differences": []},
        {"what": "with drafts, and without", "differences": []},
    ]
    tokens = recorded.steps[0].tokens
    other = msgspec.structs.replace(recorded.steps[0], tokens=(*tokens[:5], *tokens[6:]))
    # What a server does not tell that records nothing is no difference.
    own = msgspec.structs.replace(recorded, grammar="start: a", tokenizer=RecordedTokenizer("aa", 5), left_out=())
    done = dovetail(
        "explain", written(tmp_path, json.loads(msgspec.json.encode(own)), "own"), "--url", demo, "--replay"
    )
    assert done.returncode == 0
    drawn = msgspec.structs.replace(recorded, options=options(sampling={"temperature": 1}))
    done = dovetail(
        "explain", written(tmp_path, json.loads(msgspec.json.encode(drawn)), "drawn"), "--url", demo, "--replay"
    )
    assert done.returncode == 0 and done.stdout.startswith("the recorded answer is not compared")
    changed = json.loads(msgspec.json.encode(msgspec.structs.replace(recorded, steps=(other,))))
    done = dovetail("explain", written(tmp_path, changed, "other"), "--url", demo, "--replay")
    assert done.returncode == 1 and done.stdout.startswith("recorded, and asked for again\nchoice 0, token 5\n- ")


def test_an_answer_that_drafts_change_is_shown(dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """An engine whose second answer is another: what `--replay` looks for."""
    engine = ScriptedEngine(small_tokenizer)
    engine.scripts = [ids_of(Message(content=text, reasoning="hm"), small_tokenizer) for text in ("one", "two")]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 50}
    with served(create_app(engine, KimiK25(), small_tokenizer, Settings(served_model_name=MODEL))) as url:
        done = dovetail("explain", written(tmp_path, body), "--url", url, "--replay")
    assert done.returncode == 1 and done.stdout.startswith("with drafts, and without\nchoice 0, token ")
    assert [seen.draft_tokens for seen in engine.seen] == [None, 0]
    assert {seen.sampling.temperature for seen in engine.seen} == {0}


def test_a_recording_of_another_tokenizer_is_not_compared(
    dovetail: Dovetail, request_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids are other texts."""
    recorded = recording(
        step(finish="stop"),
        options=options(sampling={"temperature": 0}),
        tokenizer=RecordedTokenizer("aa", 5),
        request=msgspec.Raw(request_file.read_bytes()),
    )

    async def other(asker: Any, body: Any, api: str) -> Recording:
        return msgspec.structs.replace(recorded, tokenizer=RecordedTokenizer("bb", 5))

    monkeypatch.setattr(asked_recording.Asker, "recording", other)
    file = written(tmp_path, json.loads(msgspec.json.encode(recorded)), "a.recording.json")
    done = dovetail("explain", file, "--url", "http://127.0.0.1:9", "--replay")
    assert done.returncode == 2 and "another tokenizer" in done.stderr and done.stderr.count("\n") == 1


# -- a server that records ---------------------------------------------------------------------------------------------


def recording_server(engine: ScriptedEngine, tok: Tokenizer, folder: Path, **more: Any) -> Starlette:
    options = RecordingOptions(folder, when="requested")
    return create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, recordings=options, **more))


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
        replayed = dovetail("explain", file, "--url", url, "--replay")
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        refused = dovetail("explain", file, "--url", url)
    assert json.loads(bytes(shown.request))["dovetail"] == {"recording": True} and not shown.left_out
    assert len(shown.steps) == len(engine.ids) // 2 and shown.grammar and shown.format == "kimi_k25"
    assert "allowed: " in page.stdout and "~" in page.stdout and "the model called look_up" in page.stdout
    assert replayed.returncode == 0 and "equal" in replayed.stdout
    assert engine.seen[-1].draft_tokens == 0 and engine.seen[-1].report_drafts
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
    assert "! cut at max_tokens (60) inside call 1 (get_weather)" in done.stdout.splitlines()
    assert "I see" in done.stdout and "hm" in done.stdout


def test_what_a_server_of_ours_reports_is_shown(dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Repairs of the history, and defects of the answer; without a limit, the options are not known."""
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
        ({"choices": [{"message": {"content": 5}}]}, 200, None, "something else"),
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


@pytest.mark.slow
@pytest.mark.parametrize("api", BODIES)
def test_a_request_of_another_api_is_explained_and_replayed(
    dovetail: Dovetail, demo: str, tmp_path: Path, api: str
) -> None:
    file = written(tmp_path, BODIES[api] | {"stream": True})
    shown = decode(shown_json(dovetail, file, demo), "shown")
    assert (shown.api, len(shown.messages)) == (api, 1) and shown.message is not None and shown.prompt is not None
    assert shown.prompt.tokens and shown.options is not None and shown.options.max_tokens == shown_limit(api)
    if api == "completions":
        assert shown.message.content and shown.steps[0].finish == "length"
    else:
        (call,) = shown.message.calls
        assert json.loads(call.arguments) == {"city": "Paris"} and shown.message.reasoning
        assert (call.name, shown.steps[0].finish) == ("get_weather", "tool_calls")
    done = dovetail("explain", file, "--url", demo, "--replay")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["with drafts, and without", "equal, apart from ids and times"]
    raw = dovetail("explain", file, "--url", demo, "--raw")
    assert raw.returncode == 2 and "needs a recording" in raw.stderr


def shown_limit(api: str) -> int:
    return next(limit for name, limit in BODIES[api].items() if name.startswith("max_"))


@pytest.mark.parametrize("api", BODIES)
def test_a_recording_of_another_api_is_replayed(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path, api: str
) -> None:
    """The server's own recording of each answer is found by the answer's id."""
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message(content="ok", reasoning="" if api == "completions" else "hm"), small_tokenizer)
    body = {name: value for name, value in BODIES[api].items() if name != "tools"} | {"model": MODEL}
    with served(recording_server(engine, small_tokenizer, tmp_path / "recordings")) as url:
        shown = decode(shown_json(dovetail, written(tmp_path, body), url, "--api", api), "shown")
        file = next(path for path in (tmp_path / "recordings").iterdir() if path.name.endswith("recording.json"))
        engine.scripts = [[*engine.ids], [*engine.ids][::-1]]
        replayed = dovetail("explain", file, "--url", url, "--replay")
    assert (shown.api, shown.left_out) == (api, ()) and len(shown.steps) > 1 and shown.id in file.name
    assert replayed.returncode == 1 and replayed.stdout.startswith(
        "recorded, and asked for again\nequal, apart from ids and times\nwith drafts, and without\nchoice 0, token 0\n"
    )
    assert [seen.draft_tokens for seen in engine.seen[-2:]] == [None, 0]


ANSWERS: dict[str, tuple[dict[str, Any], Any]] = {
    "messages": (
        {"system": "s", "messages": [], "max_tokens": 9},
        lambda text: {
            "id": "msg_1",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": text},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 12345678901234567890}},
            ],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": None},
        },
    ),
    "responses": (
        {"input": "a", "max_output_tokens": 9},
        lambda text: {
            "id": "resp_1",
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "content": [{"type": "output_text", "text": text}]},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x":12345678901234567890}'},
                {"type": "web_search_call", "id": "ws"},
            ],
            "usage": {"input_tokens": 7},
        },
    ),
}


@pytest.mark.parametrize("api", ANSWERS)
def test_an_answer_of_another_servers_api_is_explained(dovetail: Dovetail, tmp_path: Path, api: str) -> None:
    body, answer = ANSWERS[api]
    texts = iter(["I see", "I see", "I saw"])

    async def answers(request: Request) -> JSONResponse:
        return JSONResponse(answer(next(texts)))

    async def listed(request: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "m"}]})

    routes = [Route(f"/v1/{api}", answers, methods=["POST"]), Route("/v1/models", listed)]
    file = written(tmp_path, body)
    with served(Starlette(routes=routes)) as url:
        shown = decode(shown_json(dovetail, file, url, "--api", api), "shown")
        replayed = dovetail("explain", file, "--url", url, "--replay")
    (message,) = shown.messages
    assert (message.content, message.reasoning, shown.prompt and shown.prompt.tokens) == ("I see", "hm", 7)
    assert message.calls == (Call("a", "f", '{"x":12345678901234567890}'),) and shown.steps[0].finish == "length"
    # No token is known, so messages are compared.
    assert replayed.returncode == 1
    assert replayed.stdout.splitlines()[1:] == ["choice 0, message.content", '- "I see"', '+ "I saw"']


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": []}, "chat"),
        ({"messages": [], "system": "a"}, "messages"),
        ({"messages": [], "tools": [{"name": "a", "input_schema": {}}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, 3], "tools": [WEATHER, 3]}, "chat"),
        ({"messages": 3, "tools": 3}, "chat"),
        ({"input": "a"}, "responses"),
        ({"prompt": "a"}, "completions"),
        ({}, None),
    ],
)
def test_the_api_of_a_request_is_told_by_its_fields(body: Any, api: str | None) -> None:
    assert api_of(body) == api


def test_what_cannot_be_sent_is_refused_in_one_line(dovetail: Dovetail, request_file: Path, tmp_path: Path) -> None:
    def refused(it: Recording, *more: str) -> str:
        file = written(tmp_path, json.loads(msgspec.json.encode(it)), "it.recording.json")
        done = dovetail("explain", file, "--url", "http://127.0.0.1:9", "--replay", *more)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        return done.stderr

    assert "redacted" in refused(recording(redacted=True))
    assert "does not have the request's body" in refused(recording())
    assert "the API 'embeddings'" in refused(recording(api="embeddings", request=msgspec.Raw(b"{}")))
    for more in ((), ("--replay",)):
        done = dovetail("explain", request_file, *more)
        assert done.returncode == 2 and "--url is missing" in done.stderr
    done = dovetail("explain", request_file, "--url", "http://127.0.0.1:1")
    assert done.returncode == 2 and "cannot be reached" in done.stderr


# -- by hand ----------------------------------------------------------------------------------------------------------


def run_shell(commands: str, folder: Path) -> str:
    """What the commands print, in a shell, with this Dovetail."""
    if missing := [program for program in ("bash", "curl", "python3") if shutil.which(program) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    script = f'set -e -o pipefail\ndovetail() {{ "{sys.executable}" -m dovetail "$@"; }}\n{commands}'
    environment = {**os.environ, "OPENAI_API_KEY": "key", "PYTHONUTF8": "1"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_three_steps_by_hand(dovetail: Dovetail, demo: str, request_file: Path, tmp_path: Path) -> None:
    body = ASKED | {"model": "demo"}
    file = written(tmp_path, body)
    printed = dovetail("explain", file, "--url", demo, "--raw")
    assert printed.returncode == 0 and printed.stdout.count("# ") >= 3
    commands = printed.stdout.replace("--format FORMAT", "--format kimi_k25")
    assert "call      functions.get_weather:0  get_weather" in run_shell(commands, tmp_path)
    recorded = recorded_by(demo, dovetail, file)
    recorded = msgspec.structs.replace(recorded, format="kimi_k25")
    again = written(tmp_path, json.loads(msgspec.json.encode(recorded)), "it's $(a).recording.json")
    commands = dovetail("explain", again, "--url", demo, "--raw").stdout
    assert "get_weather" in run_shell(commands, tmp_path) and "FORMAT" not in commands


def test_the_steps_of_other_apis_begin_with_the_recorded_ids() -> None:
    request = msgspec.Raw(b'{"model": "m", "max_completion_tokens": 7, "tools": [{"name": "a"}]}')
    it = recording(api="messages", request=request, format="kimi_k25")
    commands = raw_steps(it, "f", "http://a", key=True)
    assert (
        "--no-thinking" in commands and "tools.json" not in commands and "no request that renders messages" in commands
    )
    assert '-H "Authorization: Bearer $OPENAI_API_KEY"' in commands and '"max_tokens": 64' in commands
    assert '"max_tokens": -1' in raw_steps({"messages": []}, "f", "http://a", key=False)
    assert '"max_tokens": 7' in raw_steps(msgspec.json.decode(request), "f", "http://a", key=False)
    with pytest.raises(InvalidRequest, match="redacted"):
        raw_steps(msgspec.structs.replace(it, redacted=True), "f", "http://a", key=False)


def test_hostile_texts_are_neither_run_nor_shown(dovetail: Dovetail, demo: str, tmp_path: Path) -> None:
    evil = ["'; touch owned; '", "$(touch owned)", "`touch owned`", "\x1b]0;x\x07\u202e\n#"]
    body = {"model": "demo", "messages": [{"role": "user", "content": "".join(evil)}], "stop": evil, "max_tokens": 3}
    commands = dovetail("explain", written(tmp_path, body), "--url", demo, "--raw").stdout
    assert "\x1b" not in commands and "\u202e" not in commands and commands.count("touch owned") == 3
    run_shell(commands.replace("--format FORMAT", "--format kimi_k25"), tmp_path)
    assert not (tmp_path / "owned").exists()
