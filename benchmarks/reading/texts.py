"""What a model is made to say: messages with calls, made from a seed, so that every run and reader gets the same."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PROSE = (
    "The reader keeps its place, and the paragraph (see the note below) goes on. ",
    'She said "twice is enough", and it was; nobody asked "why?" again.\n',
    "Größe, naïveté, 漢字 and an emoji 🚀 take more than one byte each. ",
    "A path such as C:\\temp\\new has backslashes that JSON doubles.\n\n",
    "It's 3.5 % faster; that is not what the table says, though.\n",
)
_CODE = (
    "def clamp(value: float, low: float, high: float) -> float:\n",
    '    """Keep `value` between `low` and `high` — both included."""\n',
    "    if value < low or value > high:\n",
    '        raise ValueError(f"{value!r} is not in [{low}, {high}]: \\"out of range\\"")\n',
    "    return max(low, min(value, high))\n\n",
    "# naïve, but right: Σ over the row, then ÷ by its length 🚀\n",
    "totals = {key: sum(row) / len(row) for key, row in rows.items() if row}\n",
    "print('\\t'.join(sorted(totals)), file=sys.stderr)\n",
    "for index, (left, right) in enumerate(zip(a, b, strict=True)):\n",
    "    assert left <= right, f'{index}: {left} > {right}'\n\n",
)
_MARKUP = (
    '<section id="main"><h1 class="title">Überblick</h1>\n',
    "<ul><li><a href='/a?x=1&y=2'>one</a></li><li><b>two</b> &gt; 1</li></ul>\n",
    '<p>It\'s <em>quoted</em>: "so > that" <br/> and done 🚀</p></section>\n',
    "const f = (x) => x >> 2 > 0 ? (y) => y : () => null;\n",
)
#: Kinds of text for the long argument: without angle brackets, with some, with many.
VARIANTS: Mapping[str, Sequence[str]] = {"prose": _PROSE, "code": _CODE, "markup": _MARKUP}

REASONING = 'The file has to be written first. Then it is checked, as the user said: "twice".'
CONTENT = "I'll write that down now, und zwar sofort."


def _function(name: str, properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


TOOLS = [
    _function("write_file", {"path": {"type": "string"}, "content": {"type": "string"}}, ["path", "content"]),
    _function(
        "search",
        {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "exact": {"type": "boolean"},
            "filters": {"type": "array", "items": {"type": "object"}},
        },
        ["query"],
    ),
]


@dataclass(frozen=True)
class Message:
    """What a reader should find in an output."""

    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    content: str = ""
    reasoning: str = ""


def value(variant: str, characters: int, seed: int = 0) -> str:
    """Exactly `characters` characters of text, without whitespace at either end."""
    lines = VARIANTS[variant]
    choose = random.Random(f"{variant} {seed}")
    parts: list[str] = []
    length = 0
    while length < characters:
        parts.append(choose.choice(lines))
        length += len(parts[-1])
    text = "".join(parts)[:characters]
    return "x" + text[1:-1] + "x"


def long_call(text: str, *, reasoning: bool) -> Message:
    """A message with one call, one of whose arguments is `text`."""
    call = ("write_file", {"path": "src/app/main.py", "content": text})
    return Message((call,), reasoning=REASONING if reasoning else "")


def sample(seed: int, *, reasoning: bool, content: bool, parallel: bool) -> Message:
    """One of many different small messages: a call or two, half of them after content, where these are allowed."""
    choose = random.Random(seed)
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for _ in range(choose.choice((1, 1, 2)) if parallel else 1):
        text = value(choose.choice(list(VARIANTS)), choose.randint(20, 240), choose.randrange(1000))
        if choose.random() < 0.5:
            calls.append(("write_file", {"path": f"src/{choose.randrange(100)}.py", "content": text}))
        else:
            limit, exact = choose.randrange(1000), choose.random() < 0.5
            filters = [{"field": "lang", "any": ["py", "md"]}, {"field": "size", "max": choose.randrange(9)}]
            calls.append(("search", {"query": text, "limit": limit, "exact": exact, "filters": filters}))
    prose = CONTENT if content and choose.random() < 0.5 else ""
    return Message(tuple(calls), prose, REASONING if reasoning else "")
