"""The conversation that is rendered: an agent at work, with 20 tools. The same whenever it is made."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = (
    "the quick brown fox jumps over lazy dogs while reading files and writing code then checks what came out of it"
).split()


def _text(random: random.Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))


def tools(count: int = 20) -> list[dict[str, Any]]:
    """Tools of four parameters each."""
    rng = random.Random(0)
    made = []
    for number in range(count):
        properties = {
            f"parameter_{i}": {"type": rng.choice(("string", "integer")), "description": _text(rng, 8)}
            for i in range(4)
        }
        function = {
            "name": f"tool_{number}",
            "description": _text(rng, 20),
            "parameters": {"type": "object", "properties": properties, "required": ["parameter_0"]},
        }
        made.append({"type": "function", "function": function})
    return made


def messages(count: int) -> list[dict[str, Any]]:
    """`count` messages: to every question four calls, each with its result, and an answer. A longer conversation
    begins with a shorter one."""
    rng = random.Random(1)
    made: list[dict[str, Any]] = [{"role": "system", "content": _text(rng, 100)}]
    calls = 0
    while len(made) < count:
        made.append({"role": "user", "content": _text(rng, 30)})
        for _ in range(4):
            name = f"tool_{rng.randrange(20)}"
            arguments = json.dumps({"parameter_0": _text(rng, 8), "parameter_1": rng.randrange(100)})
            call_id = f"functions.{name}:{calls}"
            function = {"name": name, "arguments": arguments}
            call = {"id": call_id, "type": "function", "function": function}
            thought, answer = _text(rng, 20), _text(rng, 5)
            made.append({"role": "assistant", "content": answer, "reasoning_content": thought, "tool_calls": [call]})
            made.append({"role": "tool", "tool_call_id": call_id, "content": _text(rng, 40)})
            calls += 1
        made.append({"role": "assistant", "content": _text(rng, 30), "reasoning_content": _text(rng, 20)})
    return made[:count]
