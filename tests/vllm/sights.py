"""Random conversations with pictures, as the requests of each API."""

from __future__ import annotations

import base64
import io
import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

#: A text, a text that spells control tokens, or the data: URL of a picture.
Part = tuple[Literal["text", "spelled", "picture"], str]

PLAIN = ("hi", "What is this?", "é ☃", " ", "a\n\n\nb", "Look:\n")
#: Text that a model may not take for a picture, a call or the end of a turn.
SPELLED = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|image_pad|>",
    "<start_of_image>",
    "<image_soft_token>",
    "<end_of_turn><start_of_turn>user",
    "<|im_end|><|im_start|>system",
    "<tool_call></tool_response>",
)
#: A character of one token that no conversation and no template has.
FILLER = "~"
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Shows a picture",
            "parameters": {
                "type": "object",
                "properties": {"color": {"type": "string", "enum": ["red", "blue"]}, "near": {"type": "boolean"}},
                "required": ["color", "near"],
                "additionalProperties": False,
            },
        },
    },
)


@dataclass
class Turn:
    """One message. `calls`: the arguments of an assistant's calls to `look`. `answers`: the call of a tool's result."""

    role: str
    parts: list[Part]
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: str = ""


@dataclass
class Conversation:
    turns: list[Turn]
    tools: tuple[dict[str, Any], ...]

    @property
    def pictures(self) -> list[str]:
        return [value for turn in self.turns for kind, value in turn.parts if kind == "picture"]

    @property
    def spelled(self) -> str:
        """All texts that spell control tokens, one after the other."""
        return "".join(value for turn in self.turns for kind, value in turn.parts if kind == "spelled")

    @property
    def has_system_pictures(self) -> bool:
        return any(kind == "picture" for turn in self.turns if turn.role == "system" for kind, _ in turn.parts)

    def filled(self) -> Conversation:
        """The same with `FILLER` for each byte of the texts that spell control tokens."""

        def part(kind: Any, value: str) -> Part:
            return ("text", FILLER * len(value.encode())) if kind == "spelled" else (kind, value)

        turns = [Turn(each.role, [part(*it) for it in each.parts], each.calls, each.answers) for each in self.turns]
        return Conversation(turns, self.tools)

    def blind(self) -> Conversation:
        """The same without its pictures, and with one text in each message."""

        def texts(turn: Turn) -> list[Part]:
            text = "".join(value for kind, value in turn.parts if kind != "picture")
            return [] if turn.calls else [("text", text or "nothing")]

        return Conversation([Turn(each.role, texts(each), each.calls, each.answers) for each in self.turns], self.tools)


def picture(draw: random.Random, size: tuple[int, int] | None = None) -> str:
    """A picture as a data: URL, of any size if none is given."""
    kind, out = draw.choice(("PNG", "JPEG", "WEBP")), io.BytesIO()
    size = size or (draw.randint(30, 200), draw.randint(30, 200))
    mode = "L" if draw.random() < 0.2 else "RGB"
    noise = draw.randbytes(64 * len(mode))
    Image.frombytes(mode, (8, 8), noise).resize(size).save(out, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def conversation(draw: random.Random, *, system_pictures: bool) -> Conversation:
    """Several pictures, in the last turn, in history, in results of tools and, if a template shows them there, in a
    system message. No two texts are neighbours, which the APIs join differently."""
    album: list[str] = []

    def parts(most: int, seen: float = 0.5) -> list[Part]:
        made: list[Part] = []
        for _ in range(draw.randint(1, most)):
            if draw.random() < seen or (made and made[-1][0] != "picture"):
                again = bool(album) and draw.random() < 0.2
                album.append(draw.choice(album) if again else picture(draw))
                made.append(("picture", album[-1]))
            else:
                made.append(("spelled", draw.choice(SPELLED)) if draw.random() < 0.2 else ("text", draw.choice(PLAIN)))
        return made

    turns: list[Turn] = []
    if draw.random() < 0.3:
        turns.append(Turn("system", [("text", "be brief"), *(parts(1, 1) if system_pictures else [])]))
    tools = TOOLS if draw.random() < 0.5 else ()
    for _ in range(draw.randint(1, 3)):
        turns.append(Turn("user", parts(4)))
        if tools and draw.random() < 0.6:
            numbers = range(draw.randint(1, 2))
            calls = {f"call{len(turns):04}{i}": {"color": "red", "near": draw.random() < 0.5} for i in numbers}
            turns.append(Turn("assistant", [], calls))
            turns += [Turn("tool", parts(3), answers=call) for call in calls]
        turns.append(Turn("assistant", [("text", draw.choice(("ok", "yes")))]))
    turns.pop()
    if not album:
        turns[-1].parts.append(("picture", picture(draw)))
    return Conversation(turns, tools)


def in_chat(talk: Conversation) -> dict[str, Any]:
    def part(kind: str, value: str) -> dict[str, Any]:
        if kind == "picture":
            return {"type": "image_url", "image_url": {"url": value}}
        return {"type": "text", "text": value}

    def message(turn: Turn) -> dict[str, Any]:
        made: dict[str, Any] = {"role": turn.role, "content": [part(*each) for each in turn.parts] or ""}
        if turn.calls:
            made["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}
                for name, arguments in turn.calls.items()
            ]
        return made | ({"tool_call_id": turn.answers} if turn.answers else {})

    body = {"messages": [*map(message, talk.turns)], "chat_template_kwargs": {"enable_thinking": False}}
    return body | ({"tools": list(talk.tools)} if talk.tools else {})


def in_responses(talk: Conversation) -> dict[str, Any]:
    def part(kind: str, value: str, role: str) -> dict[str, Any]:
        if kind == "picture":
            return {"type": "input_image", "image_url": value}
        return {"type": "output_text" if role == "assistant" else "input_text", "text": value}

    items: list[dict[str, Any]] = []
    for turn in talk.turns:
        content = [part(*each, turn.role) for each in turn.parts]
        if turn.answers:
            items.append({"type": "function_call_output", "call_id": turn.answers, "output": content})
        elif content:
            items.append({"role": turn.role, "content": content})
        items += [
            {"type": "function_call", "call_id": name, "name": "look", "arguments": json.dumps(arguments)}
            for name, arguments in turn.calls.items()
        ]
    tools = [{"type": "function", "strict": None, **tool["function"]} for tool in talk.tools]
    return {"input": items, "reasoning": {"effort": "none"}, "store": False} | ({"tools": tools} if tools else {})


def in_messages(talk: Conversation) -> dict[str, Any]:
    def block(kind: str, value: str) -> dict[str, Any]:
        if kind != "picture":
            return {"type": "text", "text": value}
        head, data = value.split(",")
        source = {"type": "base64", "media_type": head[5:].partition(";")[0], "data": data}
        return {"type": "image", "source": source}

    body: dict[str, Any] = {"messages": [], "thinking": {"type": "disabled"}}
    for turn in talk.turns:
        content = [block(*each) for each in turn.parts]
        if turn.role == "system":
            body["system"] = content
        elif turn.answers:
            result = {"type": "tool_result", "tool_use_id": turn.answers, "content": content}
            if body["messages"][-1]["role"] == "user":
                body["messages"][-1]["content"].append(result)
            else:
                body["messages"].append({"role": "user", "content": [result]})
        else:
            uses = [{"type": "tool_use", "id": name, "name": "look", "input": it} for name, it in turn.calls.items()]
            body["messages"].append({"role": turn.role, "content": [*content, *uses]})
    functions = [tool["function"] for tool in talk.tools]
    tools = [
        {"name": it["name"], "description": it["description"], "input_schema": it["parameters"]} for it in functions
    ]
    return body | ({"tools": tools} if tools else {})
