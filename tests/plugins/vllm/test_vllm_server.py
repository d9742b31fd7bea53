"""A real vLLM serves the demo pair, drafting, with Dovetail's parsers by flag: streamed is whole, and what the ids say.

DOVETAIL_VLLM_CPU names the Python of an environment with vLLM on CPU. The plugin is found by its entry point.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.tokens import Detokenizer
from tests.plugins.vllm.conftest import ROOT, cache_in, environment
from training.corpus import sample

DEMO = Path(dovetail.__file__).parent / "data" / "demo"
FORMAT = KimiK25()
HELD_OUT = 1_000_000_000  # seeds from here on were never trained on
#: What the model was trained on comes as a content, and is shown as it is; calls and results show their ids.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }};{% endfor %}"
    "{{ m.tool_call_id or '' }}{% endfor %}"
)


@dataclass(frozen=True)
class Server:
    address: str

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        request = urllib.request.Request(
            f"{self.address}{path}", json.dumps(body | {"stream": True}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            lines = [line.decode().strip() for line in response]
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return [json.loads(item) for item in data if item != "[DONE]"]


def installed(folder: Path) -> None:
    """What an installation says of the entry points, in a folder that is to be on the path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "dovetail-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dovetail\nVersion: 0\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    python = os.environ.get("DOVETAIL_VLLM_CPU")
    if not python:
        pytest.skip("DOVETAIL_VLLM_CPU names no Python of an environment with vLLM on CPU: tests/vllm/setup.sh")
    folder = tmp_path_factory.mktemp("vllm")
    installed(folder)
    (folder / "template.jinja").write_text(TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculation = {"method": "eagle3", "model": str(DEMO / "drafter"), "num_speculative_tokens": 3}
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--dtype", "float32"]
    words += ["--model", str(DEMO / "target"), "--served-model-name", "demo", "--max-model-len", "2048"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "4", "--no-enable-prefix-caching"]
    words += ["--chat-template", str(folder / "template.jinja"), "--speculative-config", json.dumps(speculation)]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "dovetail_kimi_k25"]
    words += ["--reasoning-parser", "dovetail_kimi_k25"]
    variables = environment(
        TORCHDYNAMO_DISABLE="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CACHE_ROOT=str(cache_in(folder, python)),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
    )
    variables["PYTHONPATH"] += os.pathsep + str(folder)
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=variables, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        limit = time.monotonic() + 300
        while not healthy(address):
            assert process.poll() is None and time.monotonic() < limit, log.read_text()[-6000:]
            time.sleep(0.1)
        yield Server(address)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def asked(seed: int, **changed: Any) -> dict[str, Any]:
    """A chat request whose prompt is the one the model was trained on."""
    example = sample(HELD_OUT + seed)
    prompt = FORMAT.render(example.messages[: example.turn], example.tools, thinking=example.thinking)
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt.text}],
        "tools": example.tools,
        "temperature": 0,
        "max_tokens": 120,
        "return_token_ids": True,
    }
    return {name: value for name, value in (body | changed).items() if value not in (None, [])}


SEEDS = range(12)


def message_of(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, str]]]:
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return message.get("content") or "", message.get("reasoning") or "", calls


def folded(chunks: list[dict[str, Any]]) -> tuple[tuple[str, str, list[tuple[str, str, str]]], str, int]:
    """The message, the finish reason, and how many tokens the largest chunk brought."""
    content = reasoning = finish = ""
    calls: dict[int, list[str]] = {}
    largest = 0
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or ():
            entry = calls.setdefault(call["index"], [call.get("id"), "", ""])
            entry[1] += call["function"].get("name") or ""
            entry[2] += call["function"].get("arguments") or ""
        finish = choice.get("finish_reason") or finish
        largest = max(largest, len(choice.get("token_ids") or ()))
    return (content, reasoning, [tuple(call) for call in calls.values()]), finish, largest  # type: ignore[misc]


def as_the_gateway_reads(ids: list[int], prompt: list[int], tools: Any, reason: str) -> Message:
    """The message that Dovetail's gateway makes of the same tokens."""
    tokenizer = dovetail.tokenizer(DEMO / "target")
    opened = prompt[-1] == tokenizer.control["<think>"]
    reader = FORMAT.reader(tools, thinking=opened, tokenizer=tokenizer, tool_choice="auto" if tools else "none")
    ended = ids[-1] == tokenizer.control["<|im_end|>"]
    segments = Detokenizer(tokenizer).feed(ids[:-1] if ended else ids)
    return dovetail.fold([*reader.feed_segments(segments), *reader.finish(reason)])


def test_streamed_is_whole_is_what_the_gateway_reads(server: Server) -> None:
    called = several = 0
    for seed in SEEDS:
        body = asked(seed)
        answer = server.post("/v1/chat/completions", body)
        choice = answer["choices"][0]
        streamed, finish, largest = folded(server.stream("/v1/chat/completions", body))
        assert streamed == message_of(choice["message"])
        assert finish == choice["finish_reason"]
        reason = "length" if finish == "length" else "stop"
        message = as_the_gateway_reads(choice["token_ids"], answer["prompt_token_ids"], body.get("tools"), reason)
        calls = [(call.id, call.name, call.arguments) for call in message.calls]
        assert streamed == (message.content, message.reasoning, calls)
        assert finish in ("length", "tool_calls" if calls else "stop")
        called += bool(calls)
        several = max(several, largest)
    assert called >= 3, "the demo model was to make calls"
    assert several > 1, "no chunk held several tokens: nothing was drafted"


def test_calls_that_are_asked_for_are_made(server: Server) -> None:
    for seed in SEEDS:
        body = asked(seed, tool_choice="required")
        if "tools" not in body:
            continue
        choice = server.post("/v1/chat/completions", body)["choices"][0]
        streamed, finish, _ = folded(server.stream("/v1/chat/completions", body))
        assert streamed == message_of(choice["message"])
        if finish != "length":
            declared = {tool["function"]["name"] for tool in body["tools"]}
            assert streamed[2] and {name for _, name, _ in streamed[2]} <= declared
            assert all(isinstance(json.loads(arguments), dict) for _, _, arguments in streamed[2])


def test_histories_reach_the_model_repaired(server: Server) -> None:
    call = {"id": "call_abc", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Ping."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_abc", "content": "pong"},
    ]
    body = asked(0, messages=messages, max_tokens=1, tools=None)
    prompt = server.post("/v1/chat/completions", body)["prompt_token_ids"]
    assert "functions.ping:0;pongfunctions.ping:0" in dovetail.tokenizer(DEMO / "target").decode(prompt)


def test_the_responses_endpoint_says_the_same(server: Server) -> None:
    for seed in SEEDS[:6]:
        chat = asked(seed)
        expected = message_of(server.post("/v1/chat/completions", chat)["choices"][0]["message"])
        tools = [{"type": "function", **tool["function"]} for tool in chat.get("tools") or ()]
        body = {
            "model": "demo",
            "input": chat["messages"],
            "tools": tools,
            "temperature": 0,
            "max_output_tokens": 120,
            "store": False,
        }
        whole = server.post("/v1/responses", body)["output"]
        assert items(whole) == expected
        events = server.stream("/v1/responses", body)
        assert items(events[-1]["response"]["output"]) == expected


def items(output: list[dict[str, Any]]) -> tuple[str, str, list[tuple[str, str, str]]]:
    content = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    reasoning = "".join(part["text"] for item in output if item["type"] == "reasoning" for part in item["content"])
    calls = [(i["call_id"], i["name"], i["arguments"]) for i in output if i["type"] == "function_call"]
    return content, reasoning, calls


def test_the_messages_endpoint_says_the_same(server: Server) -> None:
    for seed in SEEDS[:6]:
        chat = asked(seed)
        content, _, calls = message_of(server.post("/v1/chat/completions", chat)["choices"][0]["message"])
        tools = [
            {"name": t["function"]["name"], "input_schema": t["function"].get("parameters") or {"type": "object"}}
            for t in chat.get("tools") or ()
        ]
        body = {"model": "demo", "messages": chat["messages"], "max_tokens": 120, "temperature": 0, "tools": tools}
        blocks = server.post("/v1/messages", body if tools else {k: v for k, v in body.items() if k != "tools"})
        texts = "".join(block["text"] for block in blocks["content"] if block["type"] == "text")
        uses = [(b["id"], b["name"], b["input"]) for b in blocks["content"] if b["type"] == "tool_use"]
        assert (texts, uses) == (content, [(i, name, json.loads(arguments)) for i, name, arguments in calls])
