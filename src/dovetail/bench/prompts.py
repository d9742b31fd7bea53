"""Prompts of a length in tokens by the endpoint's count. Each has words of its own, before or after the common ones."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from dovetail.bench.plan import Kind
from dovetail.client.answer import Answer
from dovetail.client.not_tested import NotTested
from dovetail.client.probe import TOOL

_VALIDATOR = jsonschema_rs.validator_for(TOOL["function"]["parameters"])


def wrong(answer: Answer) -> str | None:
    """What is wrong with an answer that had to call `TOOL`; None if nothing is."""
    calls = answer.message.calls
    if answer.faults:
        return answer.faults[0]
    if not calls:
        return "there is no call although one was required"
    for call in calls:
        if not call.id:
            return f"the call of {call.name!r:.40} has no id"
        if call.name != TOOL["function"]["name"]:
            return f"it calls {call.name!r:.40}, which is no tool"
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return f"its arguments are not JSON: {call.arguments:.80}"
        if not _VALIDATOR.is_valid(arguments):
            return f"its arguments do not validate: {call.arguments:.80}"
    return None


_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father"
).split()
_TASK: Mapping[Kind, str] = {
    "prose": "Write as long a text as you can about these words.",
    "calls": "Please get the weather for city Paris.",
}
_OWN = 8  # words that are a prompt's own
_ROUNDS = 12

#: How many tokens the prompt of a request's messages and tools has.
Count = Callable[[Mapping[str, Any]], Awaitable[int]]


class Shape(msgspec.Struct, frozen=True):
    """How many words, and then single letters, all prompts have. `shared`: they stand before a prompt's own words."""

    words: int
    letters: int
    shared: bool = False


def request(kind: Kind, shape: Shape, own: str) -> dict[str, Any]:
    """The messages and tools of one request. `own`: text from which its own words are drawn."""
    own_words = " ".join(random.Random(own).choices(_WORDS, k=_OWN))
    common = " ".join(_WORDS[i * 7 % len(_WORDS)] for i in range(shape.words)) + " a" * shape.letters
    text = f"{common}. {own_words}" if shape.shared else f"{own_words}. {common}"
    content = f"{text}\n{_TASK[kind]}"
    messages = [{"role": "user", "content": content}]
    if kind == "prose":
        return {"messages": messages}
    return {"messages": messages, "tools": [TOOL], "tool_choice": "required"}


async def fitted(kind: Kind, context: int, own: str, count: Count, start: Shape) -> Shape:
    """The shape with which the prompt has `context` tokens, as near as that is possible.

    `start`: the shape of another prompt of this length, or an empty one. Raises `NotTested` if no shape comes within
    0.5 %, or 2 tokens.
    """
    shape = start if start.words else await _by_words(kind, context, own, count, start)
    best, least = shape, context
    for _ in range(_ROUNDS):
        missing = context - await count(request(kind, shape, own))
        if abs(missing) < least:
            best, least = shape, abs(missing)
        if missing == 0:
            break
        letters = shape.letters + missing
        # Where letters are used up, words go, and letters take their place.
        words = shape.words if letters >= 0 else max(shape.words + letters, 0)
        shape = Shape(words, max(letters, 0), shape.shared)
    if least > tolerance(context):
        raise NotTested(
            f"no prompt of {context} tokens can be made: the nearest is {least} tokens away", blocking=False
        )
    return best


async def _by_words(kind: Kind, context: int, own: str, count: Count, start: Shape) -> Shape:
    empty = await count(request(kind, start, own))
    sample = await count(request(kind, Shape(len(_WORDS), 0, start.shared), own))
    per_word = (sample - empty) / len(_WORDS)
    if empty > context:
        raise NotTested(f"its shortest prompt has {empty} tokens, more than {context}", blocking=False)
    if per_word <= 0:
        raise NotTested("by its count, longer prompts have no more tokens")
    return Shape(max(int((context - empty) / per_word) - 2, 0), 0, start.shared)


def tolerance(context: int) -> int:
    return max(context // 200, 2)
