"""Requests: any number of different tools like real ones, and calls to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.constraint import schemas
from dovetail.events import Call, Message
from dovetail.tokens import Tokenizer

_VERBS = ("search", "read", "write", "list", "move", "count", "book", "cancel", "convert", "send")
_NOUNS = ("files", "orders", "flights", "issues", "rows", "messages", "places", "prices", "users", "notes")
#: Kinds of text in an answer. The rest is the envelope: markers, ids, names, brackets, commas.
KINDS = ("prose", "envelope", "keys", "strings", "numbers")

_PROSE = (
    "I will look that up. The file has 1,024 lines, and the first ones read as you said: nothing in them is out of "
    "order, but I want to see the rest before I change anything.\n\n"
)
_CODE = (
    'def area(shapes):\n    """The sum of all areas, in m²."""\n    return sum(s["w"] * s["h"] for s in shapes)\n'
    "\n\nprint(area([{'w': 3.5, 'h': 2}]))  # 7.0\n"
)


def tools(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """`count` tools of five or six parameters each; other names for another seed. Keys are in alphabetical order, those
    that are required first, so that every family declares them in the order in which they stand."""
    return [_tool(i, seed) for i in range(count)]


def _tool(i: int, seed: int) -> dict[str, Any]:
    noun = _NOUNS[i // len(_VERBS) % len(_NOUNS)]
    name = f"{_VERBS[i % len(_VERBS)]}_{noun}_{seed}_{i}"
    properties: dict[str, Any] = {
        f"a_{noun}_{seed}_{i}": {"type": "string", "description": f"Which {noun} are meant"},
        f"b_limit_{seed}_{i}": {"type": "integer", "minimum": 1, "maximum": 10 + i, "description": "How many at most"},
        "order": {"enum": ["ascending", "descending", f"by_{noun}"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "where": {
            "type": "object",
            "properties": {"exact": {"type": "boolean"}, "weight": {"type": "number"}},
            "required": ["exact"],
            "additionalProperties": False,
        },
        "zone": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    parameters = {
        "type": "object",
        "properties": properties if i % 2 == 0 else {key: properties[key] for key in list(properties)[:-1]},
        "required": list(properties)[:2],
        "additionalProperties": False,
    }
    description = f"Finds {noun} and says what is known of them"
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def walle(data: Path) -> list[dict[str, Any]]:
    """A tool for each of walle's schemas below `data`; none if they are not there."""
    folder = data / "schemas" / "walle"
    published = schemas.read(folder).values() if folder.is_dir() else ()
    return [{"type": "function", "function": {"name": "tool", "parameters": parameters}} for parameters in published]


def renamed(some: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The same tools with names of this seed alone."""
    return [
        {"type": "function", "function": {**tool["function"], "name": f"tool_{seed}_{i}"}}
        for i, tool in enumerate(some)
    ]


@dataclass(frozen=True)
class Answer:
    """An answer of a model: its ids with the end of the turn, and the kind of text that each id belongs to."""

    ids: list[int]
    kinds: list[str]


def answer(name: str, tokenizer: Tokenizer, tools_: Sequence[dict[str, Any]], calls: int = 2) -> Answer:
    """Prose and calls to the first `calls` of the tools, as the family writes them, without reasoning."""
    fmt = dovetail.format(name)
    made = []
    for i, tool in enumerate(tools_[: 1 if name in _ONE_CALL else calls]):
        function = tool["function"]
        first, second = list(function["parameters"]["properties"])[:2]
        arguments = {
            first: _CODE,
            second: 7 + i,
            "order": "descending",
            "tags": ["new", "not read yet", "für später"],
            "where": {"exact": True, "weight": 0.0625},
        }
        made.append((function["name"], arguments))
    message = Message(
        "" if name in _NO_PROSE else _PROSE,
        "",
        tuple(
            Call(f"functions.{called}:{i}", called, json.dumps(arguments, ensure_ascii=False))
            for i, (called, arguments) in enumerate(made)
        ),
    )
    prompt = fmt.write(message, thinking=False)
    ids = prompt.ids(tokenizer)
    return Answer(ids, _kinds(ids, tokenizer, message, [arguments for _, arguments in made]))


#: Families whose calls stand alone in an answer, and those whose turn ends with a call.
_NO_PROSE = ("llama3_json", "pythonic")
_ONE_CALL = ("harmony",)


def _kinds(ids: Sequence[int], tokenizer: Tokenizer, message: Message, made: Sequence[dict[str, Any]]) -> list[str]:
    """The kind of each token, by its first byte."""
    spelled = [tokenizer.token_bytes(token) for token in ids]
    text = b"".join(spelled)
    kinds = ["envelope"] * (len(text) + 1)
    at = _mark(text, kinds, 0, message.content, "prose")
    for arguments in made:
        for key, value in _leaves(arguments):
            at = _mark(text, kinds, at, key, "keys")
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, str):
                    at = _mark(text, kinds, at, inner, "strings")
                elif not isinstance(inner, bool):
                    at = _mark(text, kinds, at, json.dumps(inner), "numbers")
    starts = [0]
    for piece in spelled:
        starts.append(starts[-1] + len(piece))
    return [kinds[start] for start, _ in zip(starts, ids, strict=False)]


def _leaves(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys with their values, also those of inner objects."""
    leaves: list[tuple[str, Any]] = []
    for key, value in arguments.items():
        leaves += [(key, []), *_leaves(value)] if isinstance(value, dict) else [(key, value)]
    return leaves


def _mark(text: bytes, kinds: list[str], at: int, part: str, kind: str) -> int:
    """The end of `part` in the text after `at`, plain or escaped as in JSON; `at` if the text does not contain it."""
    spellings = (part.encode(), json.dumps(part, ensure_ascii=False)[1:-1].encode())
    places = [(start, start + len(it)) for it in spellings if it and (start := text.find(it, at)) >= 0]
    if not places:
        return at
    start, end = min(places)
    kinds[start:end] = [kind] * (end - start)
    return end
