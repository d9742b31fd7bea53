"""What memory takes of a request, by its turns: the fastest of many, with all answers put back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import tables
from dovetail.events import Call
from dovetail.formats.base import parameters_by_name
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.records.memory import Memory, Tenant, digest_of_turn
from dovetail.gateway.records.record import Record, Sealer
from tests.gateway.scripted import MODEL

_TURNS = (10, 40, 160)
_TENANT = Tenant("client")
_ROUNDS = 60
_VOCABULARY = 160_000
#: An agent's tools: 20, of 2 KB each.
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "description": "What it does. " * 120,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "all": {"default": False}}},
        },
    }
    for i in range(20)
]


def show(*, as_markdown: bool) -> None:
    """Measure and print."""
    rows = [_measured(turns) for turns in _TURNS]
    columns = ["turns", "KB of messages", "look up, ms", "in a new process, ms", "keep, ms"]
    tables.show([("What memory takes of a request", columns, rows)], [], as_markdown=as_markdown, words=("turns",))


def _measured(turns: int) -> list[str]:
    rng = Random(turns)
    sealer = Sealer(b"k" * 32, b"model--1", _VOCABULARY)
    with TemporaryDirectory() as folder:
        memory = Memory(Path(folder) / "memory.db", b"k" * 32)
        history: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent. " * 400}]
        history.append({"role": "user", "content": "Please mend the tests."})
        keeping = []
        for number in range(turns):
            call = Call(
                f"functions.tool_{number % 20}:{number}", f"tool_{number % 20}", json.dumps({"path": f"src/{number}"})
            )
            ids = tuple(rng.randrange(_VOCABULARY) for _ in range(150))
            record = sealer.seal(Record(ids, True, "markup", (1, 2), b"12345678", b"12345678"))
            place = memory.recall(history, TOOLS, _TENANT, sealer.model).place
            shown = digest_of_turn("Now the next file.", [call], parameters_by_name(TOOLS))
            began = time.perf_counter()
            memory.keep(record, shown, [call.id], _TENANT, sealer.model, place)
            keeping.append(time.perf_counter() - began)
            function = {"name": call.name, "arguments": call.arguments}
            called = {"id": call.id, "type": "function", "function": function}
            history.append({"role": "assistant", "content": "Now the next file.", "tool_calls": [called]})
            history.append({"role": "tool", "tool_call_id": call.id, "content": f"line {number}\n" * 150})
        body = json.dumps({"model": MODEL, "messages": history, "tools": TOOLS}).encode()

        def once(memory: Memory) -> float:
            request = ChatCompletion(body).turn_request
            began = time.perf_counter()
            recalled = memory.recall(request.messages, request.tools, _TENANT, sealer.model)
            seconds = time.perf_counter() - began
            assert recalled.restored == turns
            return seconds

        warm = min(once(memory) for _ in range(_ROUNDS))
        new = min(_new(once, Path(folder) / "memory.db") for _ in range(9))
        memory.close()
    size = len(msgspec.json.encode(history)) / 1000
    times = (f"{1000 * seconds:.2f}" for seconds in (warm, new, min(keeping)))
    return [str(turns), f"{size:.0f}", *times]


def _new(once: Callable[[Memory], float], path: Path) -> float:
    """The time where no digest is known yet and the file is not open."""
    from dovetail.gateway.records import record

    record._KNOWN.clear()
    memory = Memory(path, b"k" * 32)
    seconds = once(memory)
    memory.close()
    return seconds
