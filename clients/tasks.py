"""What every client is asked to do, and what the scripted model answers.

The sentences are of the kind that the demo model was trained on, so the same program of a client runs against both.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

HELLO = "Hello!"
HELLO_ANSWER = "Hello! How can I help you today? Ça va? 你好 👋"
HELLO_REASONING = "This needs no tool."

COUNT = "Count to forty."
COUNT_ANSWER = ", ".join(map(str, range(1, 41))) + "."

WEATHER = "Please get the weather for city Paris."
WEATHER_REASONING = "The user wants get_weather."
#: What the tool returns for each city.
RESULTS = {"Paris": "red", "Rome": "blue"}
WEATHER_ANSWER = "The result is red."

BOTH = "Please get the weather for city Paris and get the weather for city Rome."

PERSON_REQUEST = "Please get the person with name Ada and age 36."
PERSON: dict[str, Any] = {"name": "Ada", "age": 36}

WEATHER_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
#: A tool with a keyword that no grammar enforces, which a header reports.
PARTLY_ENFORCED_TOOL: dict[str, Any] = WEATHER_TOOL | {
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "not": {"const": "Oslo"}}},
        "required": ["city"],
    },
}
UNENFORCED = "#/properties/city/not"
PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

OLD, NEW = "draft", "final"
EDIT_FILE = "Chapter one.\nThis is the draft of it.\nThe end.\n"
#: What the model asks for beside the file, which is not there, and what the tool's error says.
MISSING, MISSING_ERROR = "missing.txt", "No such file"
_TOOLS = r"with (?P<tools>[\w-]+)'s tools"
EDIT_PATTERN = rf"Replace the word {OLD} by {NEW} in (?P<path>[\w./-]+) {_TOOLS}, then count the lines that have it\."
#: The same for an agent that reads blocks in the text instead of calls.
BLOCKS_PATTERN = rf"Replace the word {OLD} by {NEW} in (?P<path>[\w./-]+) by a SEARCH/REPLACE block\."
EDIT_ANSWER = "The file is edited; lines with the new word: 1."


def edit_request(path: str, tools: str) -> str:
    """The task of a coding agent, for the file at `path`. `tools`: their name in `scripted.agents`."""
    return f"Replace the word {OLD} by {NEW} in {path} with {tools}'s tools, then count the lines that have it."


def blocks_request(path: str) -> str:
    """The task of a coding agent without tools."""
    return f"Replace the word {OLD} by {NEW} in {path} by a SEARCH/REPLACE block."


def _png(color: str) -> str:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), color).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


#: Files of pictures in one color, in base64.
PICTURES = {color: _png(color) for color in ("red", "blue")}
SIGHT = "Which colors are these pictures?"
LOOK_PATTERN = rf"Look at (?P<path>[\w./-]+) {_TOOLS}\."
#: Shows a picture to a model whose client has no tool of its own for that.
LOOK_TOOL: dict[str, Any] = {
    "name": "view_picture",
    "description": "Shows a picture",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def look_request(path: str, tools: str) -> str:
    """The task of an agent whose tool shows the picture at `path` to the model."""
    return f"Look at {path} with {tools}'s tools."


def sight_answer(colors: Sequence[str]) -> str:
    """What the model says to pictures in these colors."""
    return f"I see: {', '.join(colors)}."


#: An answer that takes half a minute, for an agent that is stopped before its end.
SLOW = "Count to three hundred, slowly."
SLOW_ANSWER = ", ".join(map(str, range(1, 301))) + "."

#: The scripted model's context.
CONTEXT = 131_072
#: A task whose results fill the context. Once a prompt has no more results than the one before, the model says
#: `SHORTENED`, as a summary or as the next step; a conversation that has those words ends in `WENT_ON`.
GROW_PATTERN = rf"Print the numbers after (?P<number>\d+) {_TOOLS}\."
SHORTENED = "The conversation was shortened."
WENT_ON = "I went on from the summary."


def grow_request(number: str, tools: str) -> str:
    """The task whose results fill the context. `number` tells one conversation from another."""
    return f"Print the numbers after {number} with {tools}'s tools."


#: A multiple-choice exam. The scripted model prefers the answer at `preferred`; it is wrong once.
EXAM: tuple[dict[str, Any], ...] = (
    {"question": "What is the capital of France?", "choices": ["Oslo", "Paris", "Rome"], "answer": 1, "preferred": 1},
    {"question": "What is the capital of Italy?", "choices": ["Rome", "Lima", "Cairo"], "answer": 0, "preferred": 0},
    {"question": "What is the capital of Peru?", "choices": ["Rome", "Oslo", "Lima"], "answer": 2, "preferred": 2},
    {"question": "What is the capital of Norway?", "choices": ["Oslo", "Cairo", "Paris"], "answer": 0, "preferred": 1},
)
EXAM_SCORE = 0.75

BENCHMARK_REQUESTS = 6
