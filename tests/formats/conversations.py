"""Conversations of many shapes, to compare renderers."""

from __future__ import annotations

from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather: "now" <b>& later</b>, é',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Which city"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}},
]


def system(text: str = "Be brief.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(content: Any = "What is the weather?") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "Sunny.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calling(*names: str, content: Any = "", arguments: Any = None, first: int = 0, **more: Any) -> dict[str, Any]:
    """An assistant message with calls, whose ids every family accepts."""
    calls = [
        {
            "id": f"call{first + i:05}",
            "type": "function",
            "function": {"name": name, "arguments": {"city": 'Pa"ris\né'} if arguments is None else arguments},
        }
        for i, name in enumerate(names)
    ]
    return assistant(content, tool_calls=calls, **more)


def result(number: int = 0, content: Any = '{"sky": "clear"}', name: str = "get_weather") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": name, "content": content}


SHAPES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one question": ([user()], None),
    "whitespace around": ([user("  Hello \n\n")], None),
    "system": ([system(), user()], None),
    "empty system": ([system(""), user()], None),
    "unicode": ([user("Grüße, 東京 🙂 \u200b")], None),
    "two turns": ([user("a"), assistant("b"), user("c")], None),
    "many turns": ([m for i in range(5) for m in (user(f"q{i}"), assistant(f"a{i}"))] + [user("end")], None),
    "ends with the assistant": ([user(), assistant()], None),
    "parts": ([user([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])], None),
    "inline reasoning": ([user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")], None),
    "reasoning field": ([user("a"), assistant("b", reasoning_content="because"), user("c")], None),
    "reasoning last": ([user("a"), assistant("b", reasoning_content="because")], None),
    "template syntax": ([user("{{ messages }} {% if x %} {# no #}")], None),
    "tools": ([user()], TOOLS),
    "tools and system": ([system(), user()], TOOLS),
    "one call": ([user(), calling("get_weather")], TOOLS),
    "call and result": ([user(), calling("get_weather"), result()], TOOLS),
    "call with text": ([user(), calling("get_weather", content="Let me look."), result(), assistant()], TOOLS),
    "null content": ([user(), calling("get_weather", content=None), result()], TOOLS),
    "two calls": ([user(), calling("get_weather", "now"), result(0), result(1, "12:00", "now")], TOOLS),
    "two rounds": (
        [user(), calling("get_weather"), result(), calling("now", first=1, arguments={}), result(1, "12:00", "now")],
        TOOLS,
    ),
    "arguments as a string": ([user(), calling("get_weather", arguments='{"city": "Paris"}'), result()], TOOLS),
    "a turn after results": ([user(), calling("get_weather"), result(), assistant(), user("Thanks.")], TOOLS),
    "reasoning before a call": (
        [user(), calling("get_weather", reasoning_content="I should look."), result()],
        TOOLS,
    ),
    "result in parts": ([user(), calling("get_weather"), result(content=[{"type": "text", "text": "clear"}])], TOOLS),
}
