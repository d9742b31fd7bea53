"""The output of the commands that end by themselves, and one message with exit code 2 for every error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dovetail as package
from tests.cli.conftest import Dovetail

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "hi, <|im_end|>"}], "tools": [WEATHER]}
OUTPUT = (
    "Weather.</think>Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
)


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    return tmp_path / "request.json"


def test_version(dovetail_process: Dovetail) -> None:
    assert dovetail_process("--version").stdout == f"dovetail {package.__version__}\n"


def test_render_writes_exactly_the_prompt(dovetail: Dovetail, request_file: Path, pair: Path) -> None:
    prompt = package.format("kimi_k25").render(REQUEST["messages"], REQUEST["tools"])
    assert dovetail("render", request_file, "--format", "kimi_k25").stdout == prompt.text
    assert dovetail("render", "-", "--model", pair / "target", input=json.dumps(REQUEST)).stdout == prompt.text
    ids = prompt.ids(package.tokenizer(pair / "target"))
    assert json.loads(dovetail("render", request_file, "--model", pair / "target", "--ids").stdout) == ids
    shown = json.loads(dovetail("render", request_file, "--model", pair / "target", "--json").stdout)
    assert (shown["text"], shown["ids"], shown["repairs"]) == (prompt.text, ids, [])
    assert [tuple(segment.values()) for segment in shown["segments"]] == list(prompt.segments)


def test_render_takes_the_options_of_a_request(dovetail: Dovetail) -> None:
    quiet = {**REQUEST, "chat_template_kwargs": {"thinking": False}}
    prompt = package.format("kimi_k25").render(REQUEST["messages"], REQUEST["tools"], thinking=False)
    assert dovetail("render", "-", "--format", "kimi_k25", input=json.dumps(quiet)).stdout == prompt.text


def test_parse_reads_reasoning_content_and_calls(dovetail: Dovetail, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([WEATHER]))
    tools = ("--tools", tmp_path / "tools.json")
    read = json.loads(dovetail("parse", "--format", "kimi_k25", *tools, "--json", input=OUTPUT).stdout)
    assert (read["reasoning"], read["content"], read["defects"]) == ("Weather.", "Sure.", [])
    assert read["calls"] == [{"id": "functions.get_weather:0", "name": "get_weather", "arguments": '{"city": "Paris"}'}]
    shown = dovetail("parse", "--format", "kimi_k25", input=OUTPUT).stdout
    assert shown.splitlines() == [
        "reasoning Weather.",
        "content   Sure.",
        'call      functions.get_weather:0  get_weather({"city": "Paris"})',
    ]


def test_parse_without_thinking_starts_in_content(dovetail: Dovetail) -> None:
    read = json.loads(dovetail("parse", "--format", "kimi_k25", "--no-thinking", "--json", input="hello").stdout)
    assert (read["content"], read["reasoning"]) == ("hello", "")


def test_parse_shows_a_call_that_cannot_be_read(dovetail: Dovetail) -> None:
    output = OUTPUT.replace('{"city": "Paris"}', "Paris, please")
    read = json.loads(dovetail("parse", "--format", "kimi_k25", "--json", input=output).stdout)
    (call,), (defect,) = read["calls"], read["defects"]
    assert (call["arguments"], defect["kind"]) == ('{"malformed_arguments": "Paris, please"}', "malformed_call")
    options = ("--format", "kimi_k25", "--on-malformed-call", "text", "--json")
    read = json.loads(dovetail("parse", *options, input=output).stdout)
    assert read["calls"] == [] and read["content"].startswith("Sure.<|tool_calls_section_begin|>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "nowhere"), "there is no folder"),
        (("serve", "nowhere"), "there is no folder"),
        (("plan", "{pair}/target", "--drafter", "none", "--draft-tokens", "3"), "draft_tokens is 3 (command line)"),
        (("plan", "{pair}/target", "--config", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("plan", "--recipe", "kimi-k2.5-sm120-dcp5"), "did you mean kimi-k2.5-sm120-dcp"),
        (("plan", "{pair}/target", "--engine", "vlm"), "engine is 'vlm'"),
        (("plan", "{pair}/target", "--gpus", "8x B2000"), "did you mean B200"),
        (("plan", "{pair}/target", "--emit", "sglang", "--context", "4096"), "was made for 1024"),
        (("recipes", "kimi-k2.5-sm120-dcp5"), "did you mean kimi-k2.5-sm120-dcp"),
        (("recipes", "{pair}/target/config.json"), "cannot be read: Object contains unknown field"),
        (("serve", "{pair}/target", "--host", "no.such.host.invalid"), "cannot be resolved"),
        (
            ("serve", "{pair}/target", "--api-key-file", "{pair}/target/model.safetensors"),
            "cannot be read as ASCII text",
        ),
        (("render", "nowhere.json", "--format", "kimi_k25"), "nowhere.json cannot be read"),
        (("render", "{pair}/target/model.safetensors", "--format", "kimi_k25"), "is not UTF-8"),
        (("render", "-", "--format", "kimi_k25"), "standard input is not JSON"),
        (("render", "{pair}/target/config.json", "--format", "kimi_k25"), "messages is required"),
        (("render", "-", "--format", "nonesuch"), "no format or checkpoint folder 'nonesuch'"),
        (("parse", "--format", "kimi_k25", "--tools", "{pair}/target/config.json"), "tools must be a list"),
    ],
)
def test_an_error_is_one_message_and_exit_code_2(
    dovetail: Dovetail, pair: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = dovetail(*(argument.format(pair=pair) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dovetail: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_message(dovetail_process: Dovetail) -> None:
    done = dovetail_process("plan", "org/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dovetail: ") and "the hub cannot be reached" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("sreve",), "invalid choice: 'sreve'"),
        (("serve", "--draft-token", "3"), "did you mean --draft-tokens"),
        (("plan", "--max-model-length", "3"), "did you mean --max-model-len"),
        (("plan", "--kv-cache-dtype", "int3"), "invalid choice: 'int3'"),
        (("plan", "--json", "--emit", "vllm"), "not allowed with argument"),
        (("plan", "--emit", "docker"), "invalid choice: 'docker'"),
        (("serve", "--port", "http"), "invalid int value: 'http'"),
        (("render", "-"), "one of the arguments --model --format is required"),
    ],
)
def test_bad_usage_is_explained(dovetail: Dovetail, arguments: tuple[str, ...], message: str) -> None:
    done = dovetail(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
