"""The features that a client's program tries, and what it must see: exactly, or (of the demo model) the right kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from clients import tasks


class Feature(NamedTuple):
    """A feature's name in the programs, its title in the page, and what it means."""

    name: str
    title: str
    meaning: str


TEXT = (
    Feature("plain", "answer", "the text of an answer"),
    Feature("stream", "stream", "the same text in several pieces"),
    Feature("reasoning", "reasoning", "the model's reasoning"),
    Feature("usage", "usage", "token counts, equal to the engine's own"),
)
TOOLS = (
    Feature("call", "call", "a tool's name and arguments"),
    Feature("streamed_call", "streamed", "the same from a stream"),
    Feature("parallel", "two calls", "two calls in one answer"),
    Feature("result", "result", "the tool's result reaches the model, and its answer the client"),
)
SCHEMAS = (
    Feature("structured", "schema", "an object of a JSON Schema"),
    Feature("headers", "headers", "the header `x-dovetail-unenforced`, through the client"),
)
LIMITS = (
    Feature("length", "cut", "the reason when an answer is cut at its limit"),
    Feature("bad_field", "bad field", "the client's own error type, with the field named"),
    Feature("overflow", "too long", "the client's own error type for a prompt beyond the context"),
)
AGENT = (
    Feature("edited", "edited", "the file on disk is as the task wants it"),
    Feature("report", "report", "the closing text, which quotes the last tool's result"),
    Feature("turns", "turns", "the turns of the model are the task's: two calls, an edit, a command, the report"),
    Feature("exact", "exact", "each prompt begins with the tokens of the turn before, id for id"),
    Feature("both_results", "two calls", "both results of two calls in one answer reach the model, in their order"),
    Feature("failed_call", "failed call", "the error of a command that fails reaches the model"),
    Feature("cancelled", "cancel", "when the agent is stopped in the middle of an answer, the engine stops"),
    Feature("outgrown", "too long", "beyond the context it goes on from a shortened conversation, or names the reason"),
)
SIGHT = (
    Feature("sight", "in a message", "the model sees two pictures of one message, in their order"),
    Feature("looked", "by a tool", "the model sees the picture that a tool shows it"),
)
MEASURE = (
    Feature("scored", "scored", "a multiple-choice task by log probabilities, with the known score"),
    Feature("generated", "generated", "a task of generated answers, with the known score"),
    Feature("benchmarked", "requests", "all requests of a benchmark completed, by its own report"),
    Feature("counted", "tokens", "its count of output tokens is the engine's own"),
)
FEATURES = (*TEXT, *TOOLS, *SCHEMAS, *LIMITS, *SIGHT, *AGENT, *MEASURE)

_CALL = ["get_weather", {"city": "Paris"}]
_CUT = ("length", "max_tokens", "max_output_tokens")


class Target(NamedTuple):
    """What a client talks to. `completions`: what the scripted engine has recorded (`scripted.engine`)."""

    name: str
    url: str
    model: str
    reasons: bool
    scripted: bool
    completions: Sequence[dict[str, Any]] = ()


def fault(feature: str, saw: Any, target: Target) -> str | None:
    """Why what a client saw is not what it has to be; None if it is."""
    expected = _EXPECTED[feature] if target.scripted else _EXPECTED_OF_DEMO[feature]
    return None if expected(saw, target) else f"saw {saw!r:.200}"


def _equals(value: Any) -> Callable[[Any, Target], bool]:
    return lambda saw, target: bool(saw == value)


def _counts(saw: Any, target: Target) -> bool:
    return any(saw == [line["prompt"], line["output"]] for line in target.completions)


def _says(*words: str) -> Callable[[Any, Target], bool]:
    return lambda saw, target: isinstance(saw, str) and all(word in saw for word in words)


def _streamed(saw: Any, target: Target) -> bool:
    if "text" in saw:
        return bool(saw["text"] == tasks.COUNT_ANSWER and saw["pieces"] > 10)
    return bool(saw == tasks.PERSON)  # instructor streams objects


def _names_overflow(saw: str) -> bool:
    """In OpenAI's words, or in Anthropic's."""
    return any(words in saw.lower() for words in ("context", "prompt is too long"))


def _outgrown(saw: Any, target: Target) -> bool:
    grown = max((line["prompt"] for line in target.completions if line["script"] == "grow"), default=0)
    said = any(words in saw for words in (tasks.SHORTENED, tasks.WENT_ON)) or _names_overflow(saw)
    return said and grown > tasks.CONTEXT / 2


_EXPECTED: dict[str, Callable[[Any, Target], bool]] = {
    "plain": _equals(tasks.HELLO_ANSWER),
    "stream": _streamed,
    "reasoning": lambda saw, target: (saw or "") == (tasks.HELLO_REASONING if target.reasons else ""),
    "usage": _counts,
    "call": _equals([_CALL]),
    "streamed_call": _equals([_CALL]),
    "parallel": _equals([_CALL, ["get_weather", {"city": "Rome"}]]),
    "result": _equals(tasks.WEATHER_ANSWER),
    "structured": _equals(tasks.PERSON),
    "length": lambda saw, target: saw in _CUT,
    "bad_field": lambda saw, target: isinstance(saw, str) and ("temperature" in saw or "top_p" in saw),
    "overflow": lambda saw, target: isinstance(saw, str) and _names_overflow(saw),
    "headers": _says(tasks.UNENFORCED),
    "sight": _equals(tasks.sight_answer(["red", "blue"])),
    "looked": _says(tasks.sight_answer(["red"])),
    "edited": _equals(tasks.EDIT_FILE.replace(tasks.OLD, tasks.NEW)),
    "report": _says(tasks.EDIT_ANSWER),
    "turns": _equals(True),
    "exact": _equals(True),
    "both_results": _equals(True),
    "failed_call": _says(tasks.MISSING_ERROR),
    "cancelled": _equals(True),
    "outgrown": _outgrown,
    "scored": _equals(tasks.EXAM_SCORE),
    "generated": _equals(1.0),
    "benchmarked": _equals([tasks.BENCHMARK_REQUESTS, 0]),
    "counted": lambda saw, target: saw == sum(line["output"] for line in target.completions),
}


def _is_person(saw: Any, target: Target) -> bool:
    return isinstance(saw, dict) and isinstance(saw.get("name"), str) and isinstance(saw.get("age"), int)


#: The demo model is real and small: what it answers is not known to the letter.
_EXPECTED_OF_DEMO = _EXPECTED | {
    "plain": lambda saw, target: isinstance(saw, str) and bool(saw.strip()),
    "stream": lambda saw, target: _is_person(saw, target) or (bool(saw.get("text")) and saw["pieces"] > 1),
    "reasoning": lambda saw, target: isinstance(saw, str) and bool(saw.strip()),
    "usage": lambda saw, target: all(isinstance(count, int) and count > 0 for count in saw),
    "result": _says("red"),
    "structured": _is_person,
    "scored": lambda saw, target: 0 <= saw <= 1,
    "generated": lambda saw, target: 0 <= saw <= 1,
    "counted": lambda saw, target: saw > 0,
}
