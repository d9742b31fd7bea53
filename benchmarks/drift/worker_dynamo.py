"""Dynamo's parsers as a worker: its frontend as it serves, before an engine that answers with its prompt.

Dynamo's parsers are compiled into its frontend and cannot be called alone. Here the frontend gets a model whose tokens
are bytes and the control tokens of a format, and whose chat template shows the last message. The engine behind it gives
back the tokens of that message, one at a time.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.jobs import Job
from benchmarks.reading.measure import Piece, gathered

_END = "<|the end of the turn|>"
# The characters that stand for bytes in byte-level vocabularies: themselves where they can be seen, else from 256 on.
_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _SEEN}
_BYTES |= {chr(256 + number): byte for number, byte in enumerate(b for b in range(256) if b not in _SEEN)}
_START_SECONDS = 60.0
_REQUESTS = 4  # at once


class Frontend:
    """The server, on a loop of its own, with a model for each job."""

    def __init__(self) -> None:
        from dynamo import _core

        self._core = _core
        self._folder = tempfile.TemporaryDirectory()
        self._models = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._served: list[asyncio.Future[Any]] = []
        threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True).start()
        if not self._started.wait(_START_SECONDS):
            raise RuntimeError("the frontend does not start")

    async def _serve(self) -> None:
        core = self._core
        self._runtime = core.DistributedRuntime(self._loop, "mem", "tcp")
        address = {"http_host": "127.0.0.1", "http_port": self._port}
        engine = await core.make_engine(self._runtime, core.EntrypointArgs(core.EngineType.Dynamic, **address))
        self._started.set()
        await core.run_input(self._runtime, "http", engine)

    def read(self, job: Job) -> Job:
        """What the frontend makes of the job's texts."""
        name = asyncio.run_coroutine_threadsafe(self._register(job), self._loop).result(_START_SECONDS)
        self._wait(name)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return {"readings": list(pool.map(lambda text: self._ask(name, job, text), job["texts"]))}

    async def _register(self, job: Job) -> str:
        core = self._core
        self._models += 1
        name = f"model-{self._models}"
        folder = Path(self._folder.name) / name
        _write_model(folder, job["control"], job["opening"])
        config = core.ModelRuntimeConfig()
        for field in ("tool_call_parser", "reasoning_parser"):
            if job[field] is not None:
                setattr(config, field, job[field])
        endpoint = self._runtime.endpoint(f"drift.{name}.generate")
        self._served.append(asyncio.ensure_future(endpoint.serve_endpoint(_echo(job))))
        await core.register_model(
            core.ModelInput.Tokens,
            core.ModelType.Chat,
            endpoint,
            str(folder),
            name,
            worker_type=core.WorkerType.Aggregated,
            runtime_config=config,
        )
        return name

    def _wait(self, name: str) -> None:
        """Until the frontend knows the model."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v1/models", timeout=5) as answer:
                    if any(model["id"] == name for model in json.load(answer)["data"]):
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError("the frontend does not take the model")

    def _ask(self, name: str, job: Job, text: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": name,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 16_000,
            "stream": True,
            "chat_template_kwargs": {"enable_thinking": job["thinks"], "thinking": job["thinks"]},
        }
        if job["tools"]:
            body["tools"] = job["tools"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        pieces: list[Piece] = []
        try:
            with urllib.request.urlopen(request, timeout=60) as stream:
                for line in stream:
                    if line.startswith(b"data: {"):
                        pieces += _pieces(json.loads(line[6:]))
        except urllib.error.HTTPError as error:
            return {"error": f"{error.code}: {error.read()[:200]!r}"}
        except (OSError, ValueError, KeyError) as error:
            return {"error": repr(error)[:200]}
        return gathered(pieces)


def _pieces(chunk: dict[str, Any]) -> list[Piece]:
    """A chunk of the stream as pieces."""
    found: list[Piece] = []
    for choice in chunk.get("choices", ()):
        delta = choice["delta"]
        found += [("reasoning", 0, delta["reasoning_content"])] if delta.get("reasoning_content") else []
        found += [("content", 0, delta["content"])] if delta.get("content") else []
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            found += [("name", call["index"], function["name"])] if function.get("name") else []
            found += [("arguments", call["index"], function["arguments"])] if function.get("arguments") else []
    return found


def _echo(job: Job) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """An engine that answers with its prompt, less what the prompt of the model would end in."""
    opening = _count(job["opening"], job["control"])
    finish = "length" if job["cut_off"] else "stop"

    async def generate(request: dict[str, Any], context: Any = None) -> AsyncIterator[dict[str, Any]]:
        ids = request["token_ids"]
        for token in ids[: len(ids) - opening]:
            yield {"token_ids": [token]}
        yield {"token_ids": [], "finish_reason": finish}

    return generate


def _count(text: str, control: Sequence[str]) -> int:
    """How many tokens a text has."""
    for literal in sorted(control, key=len, reverse=True):
        text = text.replace(literal, "\0")
    return len(text.encode())


def _write_model(folder: Path, control: Sequence[str], opening: str) -> None:
    """The files of a model without weights. Control tokens are not special, so that no decoder leaves them out."""
    folder.mkdir()
    kinds = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": 256 + n, "content": literal, "special": literal == _END, **kinds}
        for n, literal in enumerate([*control, _END])
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": _BYTES, "merges": []},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _END,
        "chat_template": "{{ messages[-1].content }}" + "{{ " + json.dumps(opening) + " }}",
    }
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "eos_token_id": 256 + len(control),
        "max_position_embeddings": 65_536,
        "vocab_size": 257 + len(control),
    }
    for name, data in (("tokenizer", tokenizer), ("tokenizer_config", settings), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")


def load() -> tuple[Job, Callable[[Job], Job]]:
    """`jobs.serve` has the contract."""
    os.environ["DYN_LOG"] = "off"
    os.environ["DYN_SELF_HOST_METADATA"] = "0"
    return {"versions": {"dynamo": importlib.metadata.version("ai-dynamo-runtime")}}, Frontend().read


if __name__ == "__main__":
    jobs.serve(load)
