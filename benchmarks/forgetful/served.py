"""`python -m benchmarks.forgetful.served`: the demo pair, and a client without reasoning that writes arguments anew.

Cached tokens and the time to the first token of the turns after the first, with memory and without, in turns. With
`--servers`, of two servers that run, the first with `--no-memory`; they may share an engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

import dovetail
from benchmarks import tables
from benchmarks.forgetful.clients import as_javascript
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.engine.settings import EngineSettings
from dovetail.gateway import Settings, create_app
from tests.demo_server import DEMO, served

_CITIES = ("Paris", "London", "Berlin", "Madrid", "Rome", "Vienna", "Prague", "Lisbon", "Dublin", "Oslo")
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "get_weather", "description": "Get the weather", "parameters": _PARAMETERS}
_FIELDS = {
    "model": "demo",
    "tools": [{"type": "function", "function": _FUNCTION}],
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 200,
}


class Turn(NamedTuple):
    """A turn after the first: its prompt, what of it was in the cache, and the time to the first token."""

    prompt: int
    cached: int
    seconds: float


@contextmanager
def _server(memory: Path | None) -> Iterator[str]:
    engine = EmbeddedEngine(DEMO / "target", DEMO / "drafter", EngineSettings(draft_tokens=3, max_batch=1, threads=1))
    settings = Settings(served_model_name="demo", memory=memory)
    tokenizer = dovetail.tokenizer(DEMO / "target")
    with served(create_app(engine, dovetail.format(DEMO / "target"), tokenizer, settings)) as url:
        yield url


def _turns(client: httpx.Client, rng: Random, turns: int, loop: int, words: int, **fields: Any) -> Iterator[Turn]:
    """One conversation: `loop` calls with their results, an answer, the user's next message, and so on.

    `words`: that a result has more. `fields`: of all requests.
    """
    messages = [_request(rng)]
    for number in range(turns):
        calls = number % (loop + 1) < loop
        body = {**_FIELDS, **fields, "messages": messages, "tool_choice": "required" if calls else "none"}
        message, usage, seconds = _asked(client, body)
        if number:
            details = usage.get("prompt_tokens_details") or {}  # vLLM leaves it out where nothing was cached
            yield Turn(usage["prompt_tokens"], details.get("cached_tokens", 0), seconds)
        messages.append(message)
        for call in message.get("tool_calls") or ():
            content = " ".join([f"{rng.randint(1, 30)} degrees", *rng.choices(_CITIES, k=words)])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not calls:
            messages.append(_request(rng))


def _request(rng: Random) -> dict[str, Any]:
    return {"role": "user", "content": f"Please get the weather for city {rng.choice(_CITIES)}."}


def _asked(client: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], float]:
    """The message as the client keeps it, the usage, and the time to the first token."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    usage, first, began = {}, 0.0, time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice["delta"]
                if not first and (delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")):
                    first = time.perf_counter() - began
                message["content"] += delta.get("content") or ""
                for piece in delta.get("tool_calls") or ():
                    call = calls.setdefault(piece["index"], {"type": "function", "function": {"arguments": ""}})
                    call["id"] = piece.get("id", call.get("id"))
                    function = piece["function"]
                    call["function"]["name"] = function.get("name", call["function"].get("name"))
                    call["function"]["arguments"] += function.get("arguments") or ""
    for call in calls.values():
        call["function"]["arguments"] = as_javascript(call["function"]["arguments"])
    if calls:
        message["tool_calls"] = [*calls.values()]
    return message, usage, first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=8, metavar="N")
    parser.add_argument("--turns", type=int, default=18, metavar="N")
    parser.add_argument("--words", type=int, default=0, metavar="N", help="that a result of a call has more")
    parser.add_argument("--calls", type=int, nargs="*", default=[1, 4, 16], metavar="N", help="in a row")
    parser.add_argument("--servers", nargs=2, metavar="URL", help="one with --no-memory, and one with memory")
    parser.add_argument("--fields", type=json.loads, default={}, metavar="JSON", help="of all requests")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    with _servers(arguments.servers) as servers:
        rows = [row for loop in arguments.calls for row in _rows(servers, arguments, loop)]
    columns = ["calls in a row", "memory", "cached, mean", "computed, median", "ms to the first token"]
    sheet = ("A forgetful client of the demo pair", columns, rows)
    tables.show([sheet], [], as_markdown=arguments.markdown, words=("memory",))
    return 0


@contextmanager
def _servers(running: Sequence[str] | None) -> Iterator[Sequence[str]]:
    if running is not None:
        yield running
        return
    with TemporaryDirectory() as folder, _server(None) as plain, _server(Path(folder) / "memory.db") as remembering:
        yield plain, remembering


def _rows(servers: Sequence[str], arguments: argparse.Namespace, loop: int) -> Iterator[list[str]]:
    taken: dict[str, list[Turn]] = {"no": [], "yes": []}
    for number in range(arguments.conversations):
        for name, url in zip(taken, servers, strict=True):
            rng, salt = Random(f"{loop} {number}"), f"{name} {loop} {number}"  # they do not share an engine's cache
            with httpx.Client(base_url=url, timeout=300) as client:
                fields = {"cache_salt": salt, **arguments.fields}
                taken[name] += _turns(client, rng, arguments.turns, loop, arguments.words, **fields)
    for name, measured in taken.items():
        prompt, cached = (statistics.mean(each) for each in zip(*((t.prompt, t.cached) for t in measured), strict=True))
        seconds = statistics.median(turn.seconds for turn in measured)
        computed = statistics.median(turn.prompt - turn.cached for turn in measured)
        yield [str(loop), name, f"{cached:.0f} of {prompt:.0f}", f"{computed:.0f}", f"{1000 * seconds:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
