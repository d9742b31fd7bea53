"""The slow, obvious reading of a whole Kimi output: what every stream of it must add up to.

It has the whole text before it and looks ahead as it likes; the reader never does. Both were written from the laws.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

MARKERS = (
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_end|>",
)
THINK, THINK_END, SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END, END = MARKERS
ENDS_ARGUMENTS = (SECTION, SECTION_END, CALL, CALL_END, END)
INSIDE = (SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END)
#: What follows the marker of a section or a call that is no mention: a header, and what ends that.
_CALLED = re.compile(
    rf"(?:{re.escape(SECTION)}\s*)?{re.escape(CALL)}(?:(?!{'|'.join(map(re.escape, MARKERS))}|{{).)*"
    rf"(?:{re.escape(ARGUMENTS)}|{re.escape(CALL_END)}|{{)",
    re.DOTALL,
)


@dataclass
class Read:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # (name, arguments)
    whole: list[bool] = field(default_factory=list)  # whether each call was finished


def read(text: str, *, thinking: bool, reason: str = "stop") -> Read:
    """Read a whole output in which text follows every marker that begins no call.

    Knows no tools, so every name is taken as it is.
    """
    pieces = [p for p in re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text) if p]
    out = Read()
    mode = "reasoning" if thinking else "content"
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        mentioned = mode != "section" and not _CALLED.match("".join(pieces[at:]))
        at += 1
        if mentioned and piece in INSIDE:
            if mode == "reasoning":
                out.reasoning += piece
            else:
                out.content += piece
        elif piece == CALL:
            at = _call(pieces, at, out, reason)
            mode = "section"
        elif piece == THINK:
            mode = "reasoning"
        elif piece in (THINK_END, END):
            mode = "content"
        elif piece == SECTION:
            mode = "section"
        elif piece == SECTION_END:
            mode = "content"
        elif piece in (ARGUMENTS, CALL_END):
            pass
        elif mode == "reasoning":
            out.reasoning += piece
        else:
            out.content += piece.lstrip() if mode == "section" else piece
    return out


def _call(pieces: list[str], at: int, out: Read, reason: str) -> int:
    """Read the call whose header starts at `pieces[at]`; returns where to go on."""
    header = ""
    if at < len(pieces) and pieces[at] not in MARKERS:
        header = pieces[at]
        at += 1
    brace = header.find("{", 0, 1024)
    if brace < 0 and len(header) >= 1024:
        out.content += header.lstrip()
        return at
    glued = brace >= 0
    name = _name(header[:brace] if glued else header)
    begun = glued or (at < len(pieces) and pieces[at] in (ARGUMENTS, CALL_END))
    if not begun:
        out.content += header.lstrip()
        return at
    if not name:
        if glued:
            out.content += header[brace:]
            return at
        return at + 1
    body = header[brace:] if glued else ""
    if not glued and pieces[at] == ARGUMENTS:
        at += 1
    while at < len(pieces) and pieces[at] not in ENDS_ARGUMENTS:
        if pieces[at] not in MARKERS or _json_end(body) is None:  # behind the arguments, a marker is a stray
            body += pieces[at]
        at += 1
    end = _json_end(body)
    arguments, after = (
        (body[:end].lstrip(" \t\r\n"), body[end:].lstrip()) if end is not None else (body.lstrip(" \t\r\n"), "")
    )
    closed = at < len(pieces)
    whole = end is not None or closed or reason != "length"
    if not arguments and closed:
        arguments = "{}"
    out.calls.append((name, arguments))
    out.whole.append(whole and arguments.startswith("{") and _is_json(arguments))
    out.content += after
    if closed and pieces[at] == CALL_END:
        at += 1
    return at


def _name(header: str) -> str:
    header = header.strip()
    match = re.fullmatch(r"(.*?):([0-9]{1,9})", header, re.DOTALL)
    return (match[1] if match else header).removeprefix("functions.")


def _json_end(body: str) -> int | None:
    """Where the brackets that the body opens with are closed, one character at a time."""
    start = len(body) - len(body.lstrip(" \t\r\n"))
    if start == len(body) or body[start] not in "{[":
        return None
    depth, in_string, at = 0, False, start
    while at < len(body):
        character = body[at]
        if in_string and character == "\\":
            at += 1
        elif character == '"':
            in_string = not in_string
        elif not in_string and character in "{[":
            depth += 1
        elif not in_string and character in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda c: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True
