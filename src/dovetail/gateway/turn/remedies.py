"""What keeps a prompt beginning with the last one of its conversation, where the model is told the same.

Both change an order only. Without a change of the client's since the last prompt, nothing is done.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.conversation import Tools
from dovetail.formats.prompts.history import DATE_LINE, TOOLS_ORDER, Repair
from dovetail.gateway.turn.prefix import DATE, SYSTEM, SentPrompt, tool_hashes
from dovetail.gateway.turn.turn_request import TurnRequest

#: The label of a line that tells a date or a time, and is understood wherever it stands.
_LABEL = re.compile(
    r"[ \t]*(?:[-*] )?((?-i:(?=[A-Z]))(?:the )?(?:today|(?:(?:current|local|present|system) )?(?:date|time|day))\b)",
    re.IGNORECASE,
)
_FENCE = "```"


def remedied(
    request: TurnRequest, last: SentPrompt, off: Container[str]
) -> tuple[TurnRequest, list[Repair], frozenset[str]]:
    """`request` as it goes on from the prompt `last`, the changes, and the labels of the lines that were moved."""
    repairs: list[Repair] = []
    if TOOLS_ORDER not in off and (order := _order(last.tools, tool_hashes(request.tools))):
        tools, declared = [request.tools[i] for i in order], Tools(request.declared[i] for i in order)
        request = msgspec.structs.replace(request, tools=tools, declared=declared)
        repairs.append(Repair(TOOLS_ORDER, "tools", "the order of the last prompt"))
    if DATE_LINE in off:
        return request, repairs, frozenset()
    messages, dates = list(request.messages), last.dates
    for i, message in enumerate(messages):
        if message["role"] not in SYSTEM:
            break
        if isinstance(message.get("content"), str):
            text, moved = _with_dates_last(message, last.dates_changed(i, message), last.dates)
            if text != message["content"]:
                messages[i] = {**message, "content": text}
                dates |= moved
                repairs.append(Repair(DATE_LINE, f"messages[{i}].content", f"{', '.join(sorted(moved))} -> the end"))
    return msgspec.structs.replace(request, messages=messages), repairs, dates


def _order(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """The numbers of the `new` tools in the order of the `old` ones; [] if they are others, or in that order."""
    if old == new or sorted(old) != sorted(new):
        return []
    places = {tool: i for i, tool in enumerate(new)}
    return [places[tool] for tool in old]


def _with_dates_last(
    message: Mapping[str, Any], changed: Sequence[str], known: frozenset[str]
) -> tuple[str, frozenset[str]]:
    """A system text with the lines behind it that have `changed`, or have a `known` label; and their labels."""
    lines = message["content"].split("\n")
    alone = dict(_alone(lines))
    new = {line.strip() for line in changed}
    labels = known | {label for i, label in alone.items() if lines[i].strip() in new}
    moved = {i: label for i, label in alone.items() if label in labels}
    rest = [line for i, line in enumerate(lines) if i not in moved]
    text = "\n".join([*rest, *(lines[i].strip() for i in moved)])
    return text, frozenset(moved.values())


def _alone(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The numbers and labels of the lines with a date that are understood without those around them."""
    fenced = False
    for i, line in enumerate(lines):
        fenced ^= line.lstrip().startswith(_FENCE)
        before, after = lines[i - 1].rstrip() if i else "", lines[i + 1] if i + 1 < len(lines) else ""
        if fenced or before.endswith((":", ",")) or line.rstrip().endswith((",", ":", ";", "-", "(", "\\")):
            continue
        goes_on = after.strip()[:1].islower() or _indent(after) > _indent(line)
        if not goes_on and DATE.search(line) and (label := _LABEL.match(line)) is not None:
            yield i, label[1].lower()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0
