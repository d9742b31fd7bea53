"""What the programs of the Python clients share: the task, and a line of JSON for each feature.

A program defines one function for each feature that its client offers, marked `@feature`, and calls `main`. A function
returns what its client saw; what that has to be, the harness knows. Programs run in their clients' environments, so
nothing here needs a package.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

TASK = json.loads(os.environ["DOVETAIL_TASK"])
ROOT: str = TASK["url"]
URL: str = f"{ROOT}/v1"
MODEL: str = TASK["model"]
KEY = "any-key"
HELLO, COUNT, WEATHER, BOTH, PERSON_REQUEST = (
    TASK[name] for name in ("hello", "count", "weather", "both", "person_request")
)
#: The weather tool: name, description, parameters; and the schema of a person.
TOOL: dict[str, Any] = TASK["weather_tool"]
#: The same with a keyword that no grammar enforces.
PARTLY_ENFORCED: dict[str, Any] = TASK["partly_enforced_tool"]
SCHEMA: dict[str, Any] = TASK["person_schema"]
#: What to ask about two pictures, and the two as data: URLs.
SIGHT: str = TASK["sight"]
RED, BLUE = (f"data:image/png;base64,{TASK['pictures'][color]}" for color in ("red", "blue"))
#: What to ask for a call of LOOK_TOOL, whose result is a picture.
LOOK: str = TASK["look_request"].format(path="red.png", tools="own")
LOOK_TOOL: dict[str, Any] = TASK["look_tool"]
#: A prompt beyond every context.
TOO_LONG = "word " * TASK["too_long_words"]

_FEATURES: dict[str, Callable[[], Any]] = {}


def feature(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register the function under its name, which is the feature's."""
    _FEATURES[function.__name__] = function
    return function


def feature_of_sight(function: Callable[[], Any]) -> Callable[[], Any]:
    """`feature` for the one server whose model sees, which comes first."""
    return feature(function) if os.environ.get("DOVETAIL_FIRST") else function


def result_of(city: str) -> str:
    """What the weather tool returns. The demo model may ask for any city."""
    return json.dumps({"result": TASK["results"].get(city, "grey")})


def calls_of(calls: Any) -> list[list[Any]]:
    """Chat completions' calls as [name, arguments]."""
    return [[call.function.name, json.loads(call.function.arguments)] for call in calls or ()]


def raises(kind: type[BaseException], request: Callable[[], Any]) -> str:
    """The message of the error of `kind` that `request` must raise."""
    try:
        request()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no {kind.__name__} was raised")


async def raises_async(kind: type[BaseException], request: Awaitable[Any]) -> str:
    """`raises` for an awaitable."""
    try:
        await request
    except kind as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no {kind.__name__} was raised")


def main() -> None:
    """Run each feature and print what it saw. Asynchronous ones share an event loop, as their clients do."""
    with asyncio.Runner() as runner:
        for name, function in _FEATURES.items():
            try:
                saw = function() if not inspect.iscoroutinefunction(function) else runner.run(function())
                line = {"feature": name, "saw": saw}
            except Exception as error:
                traceback.print_exc()
                line = {"feature": name, "error": f"{type(error).__name__}: {error}"}
            print(f"\n{json.dumps(line)}", flush=True)  # on a line of its own, whatever the client has printed
