"""`python -m benchmarks.forgetful.remedies`: what each remedy keeps of an agent's prompts, with Kimi K2's format.

An agent with 20 tools and a long system text sends, in every turn, what the remedy is for. The figures are the tokens
that a prompt has in common with the last prompt and its answer, without the remedy and with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import tables
from benchmarks.forgetful.__main__ import SHARED
from benchmarks.forgetful.cost import TOOLS
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.records.memory import Memory, Tenant
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn_request import TurnRequest
from tests.gateway.multi_turn import SETTINGS, Replaying, native
from tests.gateway.scripted import MODEL

_RULES = "Read a file before you edit it, and run the tests behind that. " * 100
_REMEDIES = ("tools_order", "date_line", "billing_line")
_TURNS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in _REMEDIES:
        (prompt, without), (_, kept) = (_kept(name, on=on) for on in (False, True))
        rows.append([f"`{name}`", f"{prompt:,}", f"{without:,}", f"{kept:,}"])
    sheet = ("What remedies keep", ["remedy", "prompt", "kept without", "kept with"], rows)
    tables.show([sheet], [f"{_TURNS} turns, means"], as_markdown=arguments.markdown, words=("remedy",))
    return 0


def _kept(remedy: str, *, on: bool) -> tuple[int, int]:
    """The tokens of a prompt, and how many of the last one it begins with: means of the turns after the first."""
    model = native("kimi_k2", SHARED)
    rng = Random(remedy)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Please mend the tests."}]
    prompted = kept = 0
    with TemporaryDirectory() as folder:
        memory = Memory(Path(folder) / "memory.db", SETTINGS.record_key)
        runner = TurnRunner(Replaying(model.tokenizer), model.format, model.tokenizer, SETTINGS, memory)
        for number in range(_TURNS):
            turn = runner.prepare(_request(remedy, on, rng, number, history))
            if turn.prefix is not None:
                prompted, kept = prompted + len(turn.prompt), kept + turn.prefix.kept
            function = {"name": "tool_1", "arguments": json.dumps({"path": f"src/{number}"})}
            call = {"id": f"functions.tool_1:{number}", "type": "function", "function": function}
            history.append({"role": "assistant", "content": "Now the next file.", "tool_calls": [call]})
            history.append({"role": "tool", "tool_call_id": call["id"], "content": f"line {number}\n" * 150})
        memory.close()
    return prompted // (_TURNS - 1), kept // (_TURNS - 1)


def _request(remedy: str, on: bool, rng: Random, number: int, history: list[dict[str, Any]]) -> TurnRequest:
    tools, lines = list(TOOLS), ["You are an agent.", "Today's date: 2026-11-29", _RULES]
    if remedy == "tools_order":
        rng.shuffle(tools)
    elif remedy == "date_line":
        lines[1] = f"Current time: 10:{10 + number}"
    else:
        lines.insert(0, f"x-anthropic-billing-header: cc_version=2.1; cch={rng.randrange(16**5):05x};\n")
    messages = [{"role": "system", "content": "\n".join(lines)}, *history]
    extension: Mapping[str, Any] = {"repair": {remedy: on}}
    body = {"model": MODEL, "messages": messages, "tools": tools, "dovetail": extension}
    request = ChatCompletion(json.dumps(body).encode()).turn_request
    return msgspec.structs.replace(request, tenant=Tenant("client"))


if __name__ == "__main__":
    sys.exit(main())
