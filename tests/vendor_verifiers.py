"""`python -m tests.vendor_verifiers FOLDER ENVIRONMENT [pytest arguments]`: the vendors' verifiers against the demo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGES = (
    "openai", "httpx", "pytest", "pytest-rerunfailures", "jsonschema", "loguru", "tqdm", "megfile", "numpy",
)  # fmt: skip
_FIXED = "temperature=0.6/0/1,top_p=0.95"
_SUITES = ("tests/params", "tests/k3_features", "tests/tool_call_json_schema")
_FEW_CASES = ("--max-cases", "10")
_STARTS_WITHIN_S = 120
_WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def main(folder: Path, environment: Path, arguments: list[str]) -> int:
    python = str(_python(environment))
    return _moonshot(folder / "kimi-vendor-verifier", python, arguments) or _minimax(
        folder / "minimax-provider-verifier", python
    )


def _moonshot(folder: Path, python: str, arguments: list[str]) -> int:
    with _demo() as url:
        served = ("--smoke-model", "dovetail-demo", "--base-url", f"{url}/v1", "--api-key", "any")
        suite = (python, "-m", "pytest", "-p", "no:cacheprovider", *_SUITES, *served)
        return _run(folder, *suite, *(arguments or _FEW_CASES))


def _minimax(folder: Path, python: str) -> int:
    """Its program, then ours with the same requests. Nothing is enforced, so that calls break their schemas."""
    with _demo("--strict", "off") as url, tempfile.TemporaryDirectory() as scratch:
        data, summary = Path(scratch, "requests.jsonl"), Path(scratch, "summary.json")
        data.write_text("".join(json.dumps(request) + "\n" for request in _requests()))
        served = ("--model", "dovetail-demo", "--base-url", f"{url}/v1", "--api-key", "any")
        outputs = ("--output", f"{scratch}/output.jsonl", "--summary", str(summary), "--retries", "3")
        failed = _run(folder, python, "verify.py", str(data), *served, *outputs)
        print(summary.read_text())
        return failed or _disagrees(json.loads(summary.read_text()), url, data)


#: The names of MiniMax's figures, and ours.
_FIGURES = {
    "tool_calls_finish_stop": "finish_stop",
    "tool_calls_finish_tool_calls": "finish_tool_calls",
    "tool_calls_finish_others": "finish_others",
    "tool_calls_successful_count": "successful_tool_call_count",
    "tool_calls_schema_validation_error_count": "schema_validation_error_count",
}


def _disagrees(summary: dict[str, object], url: str, data: Path) -> int:
    """Whether `dovetail verify` has other figures of the same requests than MiniMax's program."""
    verify = (sys.executable, "-m", "dovetail", "verify", url, "--suite", "calls", "--samples", str(data), "--json")
    printed = subprocess.run(verify, capture_output=True, text=True).stdout
    figures = json.loads(printed)["suites"]["calls"]["figures"]
    theirs = {name: summary[name] for name in _FIGURES}
    ours = {name: int(figures[of]["value"]) for name, of in _FIGURES.items()}
    print(f"dovetail verify: {ours}\n{'the same figures' if ours == theirs else f'other figures than {theirs}'}")
    return int(ours != theirs)


def _requests() -> Iterator[dict[str, object]]:
    """Requests for greedy answers: calls, calls that their schema forbids, texts, and answers that are cut off."""
    forbidden = {**_WEATHER, "properties": {"city": {"type": "integer"}}}
    texts = ("Please get the weather for city Paris.", "Please get the weather for city Rome.", "Hello!")
    for text in texts:
        for schema in (_WEATHER, forbidden):
            for more in ({}, {"max_tokens": 9}, {"stream": True}):
                function = {"name": "get_weather", "description": "Get the weather", "parameters": schema}
                tools = [{"type": "function", "function": function}]
                body = {"messages": [{"role": "user", "content": text}], "tools": tools, "temperature": 0}
                yield {**body, "max_tokens": 300, **more}


def _python(environment: Path) -> Path:
    python = environment.resolve() / "bin/python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *_PACKAGES], check=True)
    return python


def _run(folder: Path, *command: str) -> int:
    # Nothing is written beside the verifiers' own files.
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).returncode


@contextmanager
def _demo(*options: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = (sys.executable, "-m", "dovetail", "serve", "--port", str(port), "--fixed-sampling", _FIXED, *options)
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/health")
        yield url
    finally:
        server.terminate()
        server.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
