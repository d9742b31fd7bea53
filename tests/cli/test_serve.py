"""`dovetail serve` as a process: its output fits on one screen, its curl command works, and it ends quietly."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from rich.console import Console

import dovetail
from dovetail.checkpoints import hub
from dovetail.cli import serve
from dovetail.cli.terminal import curl, url_of
from dovetail.errors import CheckpointError, PlanError
from dovetail.events import Call, Message
from dovetail.gateway.observe.recording_folder import RecordingLimits, RecordingOptions
from dovetail.gateway.settings import MEMORY_LIMITS
from dovetail.gateway.store.interface import Store, StoreLimits
from dovetail.plan import Plan, engines, resolve
from dovetail.server.api_keys import NO_KEYS
from dovetail.tokens import Tokenizer
from tests.checkpoints.configs import QWEN3_8B, QWEN3_8B_EAGLE3, write
from tests.cli.conftest import Dovetail
from tests.formats.chat_templates import HERMES, PLAIN, SMALL_CONTROLS
from tests.formats.test_registry import checkpoint
from tests.gateway.scripted import ScriptedEngine, ids_of

#: Below the ports that the system gives to those who take any, and others in each process that runs tests.
_PORTS = itertools.cycle(range(first := 10_000 + os.getpid() * 100 % 20_000, first + 100))


def free_port() -> int:
    """A port that nobody listens on, and that no other test will take before its server does."""
    for port in itertools.islice(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@contextlib.contextmanager
def serving(port: int, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`dovetail serve` as a child that listens on `port`; killed at the end if it still runs."""
    command = [sys.executable, "-m", "dovetail", "serve", *map(str, arguments), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            while child.poll() is None:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.05)
            yield child
        finally:
            child.kill()


# Servers that tests/server/test_tls.py and others start end quietly on SIGTERM too.
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_server_answers_and_ends_quietly_on_a_signal(pair: Path, number: signal.Signals) -> None:
    port = free_port()
    with serving(port, pair / "drafter", "--context", "256") as child:
        # The server may not be ready yet, but early clients wait in line.
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="target", messages=[{"role": "user", "content": "hi"}], max_tokens=8, temperature=0
            )
        child.send_signal(number)
        printed, complaints = child.communicate(timeout=30)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert child.returncode == 0
    assert complaints == ""
    assert f"http://127.0.0.1:{port}" in printed
    assert len(printed.splitlines()) <= 33, "one screen"


#: A server whose weights take forever to load.
LOADING = """
import sys, time
from dovetail.backends import embedded
from dovetail.cli.main import main

def load(*arguments, **options):
    print("loading", flush=True)
    time.sleep(600)

embedded.LLMCore.load = load
sys.exit(main())
"""


@pytest.mark.slow
def test_ctrl_c_while_loading_ends_the_process_at_once(pair: Path) -> None:
    command = [sys.executable, "-c", LOADING, "serve", str(pair / "target"), "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert "loading\n" in iter(child.stdout.readline, "")
            child.send_signal(signal.SIGINT)
            _, complaints = child.communicate(timeout=30)
        finally:
            child.kill()
    assert (child.returncode, complaints) == (130, "")


@pytest.mark.slow
def test_the_printed_curl_command_works_when_pasted(pair: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "a key"
    key_file.write_text("secret\n")
    port = free_port()
    with serving(port, pair / "target", "--api-key-file", key_file, "--served-model-name", "it's") as child:
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=60).status_code == 401
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=30)
    plan = resolve(str(pair / "target"), {"api_key_file": str(key_file), "served_model_name": "it's", "port": port})
    assert curl(plan) in printed
    # The arguments that curl would get from the shell.
    seen = subprocess.run(
        ["sh", "-c", 'curl() { for word; do printf "%s\\0" "$word"; done; }\n' + curl(plan)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]
    assert seen[0] == f"http://127.0.0.1:{port}/v1/chat/completions"
    assert seen[1:-1] == ["-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json", "-d"]
    body = json.loads(seen[-1])
    assert body["model"] == "it's"
    assert body["tools"][0]["function"]["name"] == "get_weather"


def test_no_repair_is_the_default_that_a_request_may_override(pair: Path) -> None:
    plan = resolve(str(pair / "target"), {"no_repair": "call_id,result_id"})
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    body = {"model": "target", "messages": history, "max_tokens": 1}

    async def main() -> list[str]:
        app, _ = serve.embedded_app(plan)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            bodies = (body, body | {"dovetail": {"repair": True}})
            answers = [await client.post("/v1/chat/completions", json=one) for one in bodies]
        return [answer.headers["x-dovetail-repairs"] for answer in answers]

    assert asyncio.run(main()) == ["empty_content=1", "empty_content=1,call_id=1,result_id=1"]


@pytest.mark.parametrize("word", ["report", "stop", "break", "off"])
def test_loops_end_as_the_plan_says(small_tokenizer: Tokenizer, pair: Path, word: str) -> None:
    plan = resolve(str(pair / "target"), {"loops": word})
    assert plan.data()["loops"] == {"value": word, "from": "command line"}
    assert resolve(str(pair / "target"), {}).value("loops") is None
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message("and so on, " * 100), small_tokenizer)
    body = {"model": "target", "messages": [{"role": "user", "content": "hi"}]}

    async def main() -> Any:
        app = serve.gateway_app(plan, NO_KEYS, engine, dovetail.format("kimi_k25"), small_tokenizer)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]

    choice = asyncio.run(main())
    assert choice["finish_reason"] == ("length" if word in ("stop", "break") else "stop")
    assert ("dovetail" in choice["message"]) == (word != "off")


@pytest.mark.parametrize("word", ["error", "text"])
def test_a_call_that_cannot_be_read_is_what_the_plan_says(small_tokenizer: Tokenizer, pair: Path, word: str) -> None:
    plan = resolve(str(pair / "target"), {"on_malformed_call": word})
    assert plan.data()["on_malformed_call"] == {"value": word, "from": "command line"}
    assert resolve(str(pair / "target"), {}).data()["on_malformed_call"] == {"value": "error", "from": "default"}
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message(calls=(Call("functions.f:0", "f", "no JSON"),)), small_tokenizer)
    function = {"type": "function", "function": {"name": "f"}}
    body = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "tools": [function]}

    async def main() -> Any:
        app = serve.gateway_app(plan, NO_KEYS, engine, dovetail.format("kimi_k25"), small_tokenizer)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            answer = await client.post("/v1/chat/completions", json=body | {"dovetail": {"strict": "off"}})
        return answer.json()["choices"][0]

    choice = asyncio.run(main())
    assert choice["finish_reason"] == {"error": "tool_calls", "text": "stop"}[word]
    assert bool(choice["message"].get("tool_calls")) == (word == "error")


def test_the_option_tokenizer_replaces_the_targets_tokenizer(pair: Path, tmp_path: Path) -> None:
    """Also if the target has none."""
    for which in ("target", "tokenizer"):
        (tmp_path / which).mkdir()
    for file in (pair / "target").iterdir():
        (tmp_path / ("tokenizer" if file.name == "tokenizer.json" else "target") / file.name).symlink_to(file)
    options = {"tokenizer": str(tmp_path / "tokenizer"), "format": "kimi_k25"}
    plan = resolve(str(tmp_path / "target"), options)
    body = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stop": ["never"]}

    async def main() -> int:
        app, _ = serve.embedded_app(plan)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return (await client.post("/v1/chat/completions", json=body)).status_code

    assert asyncio.run(main()) == 200


def test_a_model_without_local_files_is_not_served(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = {"drafter": "org/drafter", "method": "eagle3"}

    def fetch(name: str, *, revision: str | None = None) -> str:
        raise CheckpointError(f"there is no {name}")

    monkeypatch.setattr(hub, "fetch", fetch)
    with pytest.raises(PlanError, match=r"org/drafter cannot be served, because its files could not be read"):
        serve.check_servable(resolve(str(pair / "target"), drafted))
    verifier = {"verifier": {"name_or_path": "org/target"}}
    drafter = write(tmp_path, QWEN3_8B_EAGLE3, speculators_config=verifier)
    with pytest.raises(PlanError, match=r"org/target could not be read.*there is no org/target"):
        serve.check_servable(resolve(drafter, {}))
    monkeypatch.setattr(hub, "fetch", lambda name, revision=None: str(pair / "target"))
    serve.check_servable(resolve("org/target", {}))
    monkeypatch.setattr(engines, "check_complete", hub_without_weights)
    with pytest.raises(
        PlanError, match=r"the weights of org/target are not here: `hf download org/target` fetches them"
    ):
        serve.check_servable(resolve("org/target", {}))


def hub_without_weights(path: str, *, tokenizer: bool) -> None:
    raise CheckpointError("half")


def test_a_port_in_use_is_one_message(dovetail: Dovetail, pair: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = dovetail("serve", pair / "target", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"dovetail: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port or --host\n"
    )


def test_an_engine_that_cannot_start_is_one_message(dovetail: Dovetail, pair: Path, tmp_path: Path) -> None:
    for file in (pair / "target").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 1000 if file.suffix == ".safetensors" else None])
    done = dovetail("serve", tmp_path, "--port", str(free_port()))
    assert done.returncode == 2
    assert done.stderr.startswith("dovetail: ")
    assert "model.safetensors" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_open_address_without_a_key_is_warned_about(pair: Path) -> None:
    port = free_port()
    with serving(port, pair / "target", "--host", "0.0.0.0") as child:
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=30)
    assert "warning: 0.0.0.0 is open to other machines" in printed


def test_the_url_is_that_of_the_local_machine() -> None:
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert url_of("::", 80) == "http://[::1]:80"
    assert url_of("model.lan", 80) == "http://model.lan:80"


@pytest.mark.parametrize(
    ("store", "default"),
    [("response_store", StoreLimits()), ("memory_store", StoreLimits(500_000, 1 << 30, 7 * 86_400))],
)
def test_limits_of_stores(pair: Path, store: str, default: StoreLimits) -> None:
    target = str(pair / "target")
    assert serve.file_limits(resolve(target, {}), store, default) == default
    limits = {f"{store}_count": 7, f"{store}_size": 4096, f"{store}_age": 0.5}
    assert serve.file_limits(resolve(target, limits), store, default) == StoreLimits(7, 4096, 43_200)
    assert StoreLimits(500_000, 1 << 30, 7 * 86_400) == MEMORY_LIMITS


def test_where_requests_are_recorded(pair: Path, tmp_path: Path) -> None:
    target = str(pair / "target")
    assert serve.recording_options(resolve(target, {})) is None
    folder = tmp_path / "recordings"
    options = serve.recording_options(resolve(target, {"record": str(folder)}))
    assert options == RecordingOptions(folder) and folder.is_dir()
    limits = {"record_count": 7, "record_size": 4096, "record_age": 0.5, "record_redact": True}
    options = serve.recording_options(resolve(target, {"record": str(folder), "record_when": "requested", **limits}))
    assert options == RecordingOptions(folder, RecordingLimits(7, 4096, 43200), redact=True, when="requested")
    kept = serve.recording_options(resolve(target, {"record": str(folder), "record_pictures": True}))
    assert kept == RecordingOptions(folder, pictures=True)
    with pytest.raises(PlanError, match="leave one of them out"):
        serve.recording_options(resolve(target, {"record": str(folder), "record_pictures": True, **limits}))
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot be a folder"):
        serve.recording_options(resolve(target, {"record": str(tmp_path / "file")}))


@pytest.mark.parametrize(("template", "shown"), [(PLAIN, False), (HERMES, True)])
def test_the_printed_curl_has_tools_if_the_template_shows_them(tmp_path: Path, template: str, shown: bool) -> None:
    """The server refuses tools that its prompts do not show; but a template that shows none gets them as text."""
    folder = checkpoint(Path(write(tmp_path / "model", QWEN3_8B)), *SMALL_CONTROLS, template=template)
    for options in ({"generic_tools": False}, {"format": "hermes"} if shown else {"generic_tools": False}):
        console = Console(file=io.StringIO(), width=200)
        plan = resolve(str(folder), options, engine="vllm")
        serve._announce(plan, NO_KEYS, console)
        assert isinstance(console.file, io.StringIO)
        printed = console.file.getvalue()
        assert curl(plan, tools=shown) in printed
        assert ("get_weather" in printed) == shown
        assert serve.plan_format(plan).render([{"role": "user", "content": "Hi."}]).text.startswith("<|im_start|>user")


@pytest.mark.parametrize(
    ("options", "named"),
    [({"record": "r"}, True), ({}, False), ({"record": "r", "uds": "s"}, False)],
)
def test_the_page_of_recordings_is_named(pair: Path, options: dict[str, Any], named: bool) -> None:
    console = Console(file=io.StringIO(), width=200)
    serve._announce(resolve(str(pair / "target"), options), NO_KEYS, console)
    assert isinstance(console.file, io.StringIO)
    assert ("http://127.0.0.1:8000/inspect" in console.file.getvalue()) == named


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "0.0.0.0", "record": "r"}, ["clients need no key", "everybody there can read the recordings"]),
        ({"host": "0.0.0.0"}, ["clients need no key"]),
        ({"record": "r"}, []),
    ],
)
def test_who_can_read_the_recordings_of_an_open_server_is_said(
    pair: Path, options: dict[str, Any], warned: list[str]
) -> None:
    console = Console(file=io.StringIO(), width=400)
    serve._announce(resolve(str(pair / "target"), options), NO_KEYS, console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    texts = ("clients need no key", "everybody there can read the recordings")
    assert [text for text in texts if text in printed] == warned


def test_where_stores_are(pair: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = str(pair / "target")

    def responses(plan: Plan) -> Path | Store | None:
        return serve.stored_at(plan, "response_store", "responses.db")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert responses(resolve(target, {})) == tmp_path / "dovetail" / "responses.db"
    assert responses(resolve(target, {"response_store": "/a/b.db"})) == Path("/a/b.db")
    assert responses(resolve(target, {"response_store": "none"})) is None
    assert serve.memory_place(resolve(target, {})) == tmp_path / "dovetail" / "memory.db"
    assert serve.memory_place(resolve(target, {"memory_store": "/a/m.db"})) == Path("/a/m.db")
    assert serve.memory_place(resolve(target, {"memory_store": "none"})) is None
    assert serve.memory_place(resolve(target, {"memory": False})) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # is to be ignored, says the specification
    assert responses(resolve(target, {})) == Path.home() / ".cache" / "dovetail" / "responses.db"

    def homeless() -> Path:
        raise RuntimeError("no home folder")

    monkeypatch.setattr(Path, "home", homeless)
    assert responses(resolve(target, {})) is None
