"""Two more ways to write JSON calls: `NamedCalls`, the name before the arguments, and `KeyedCalls`, the name as a key.

See docs/adding-a-family.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.events import Call
from dovetail.formats.declared.declaration_checks import check_slots
from dovetail.formats.declared.declared import Declaration, JsonCalls, filled, is_control, opened_by
from dovetail.reading import CallReader
from dovetail.reading.json_calls import KeyedCallReader
from dovetail.reading.named_calls import NamedCallReader
from dovetail.tokens import Segment

_SLOT = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True)
class NamedCalls(Declaration):
    """Calls whose name stands before their arguments, which are JSON.

    `section`, `between`, `after_content`: see `JsonCalls`. The section may be `{calls}` or `{call}` alone.
    `call`: one call, with the slots `{name}` and `{arguments}`, in this order, and perhaps `{id}` or `{index}` before
    the arguments: `<call>{id}<name>{name}<args>{arguments}</call>`, `{name}[ARGS]{arguments}`. Markup ends each slot
    but the last, and markup of the section or the call comes first.
    """

    section: str
    call: str
    between: str = ""
    after_content: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots("call", self.call, {"name", "arguments"}, {"id", "index"})
        markup = _SLOT.split(self.call)
        if markup[-2] != "arguments" or not all(markup[2:-2:2]) or not (self._around[0] + markup[0]).strip():
            raise ValueError(f"call must begin with markup, have some after each slot and end in {{arguments}}: {self}")

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        return filled(self.call, controls, index=index, id=call.id, name=call.name, arguments=call.arguments)

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        section, end = self._around
        pieces = _SLOT.split(self.call)
        slots = ("id" if slot == "index" else slot for slot in pieces[1:-2:2])
        header = tuple((slot, after.strip() or after) for slot, after in zip(slots, pieces[2:-2:2], strict=True))
        call, call_end = pieces[0].strip(), pieces[-1].strip()
        alone = not section.strip()
        own = tuple(filter(None, (section.strip(), end, call, call_end, *(end for _, end in header))))
        more = (control for control in controls if not any(mark.startswith(control) for mark in own))
        marks = tuple(
            mark for mark in own if mark in (section.strip(), end, call, call_end) or is_control(mark, controls)
        )
        return NamedCallReader, {
            **opened_by(controls, *((section + call, self.between + call) if alone else (section, call))),
            "section": section.strip(),
            "section_end": end,
            "call": call,
            "call_end": call_end,
            "header": header,
            "marks": tuple(dict.fromkeys((*marks, *more))),
            "inner": tuple(mark for mark in own if mark not in (section.strip(), call) and is_control(mark, controls)),
            "ends_with_call": not end and (alone or not call),
        }


@dataclass(frozen=True)
class KeyedCalls(JsonCalls):
    """Calls that are JSON objects with one member, the tool's name and the arguments: `{"ping": {"host": "a"}}`.

    See `JsonCalls`.
    """

    call: str = '{"{name}": {arguments}}'

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        return KeyedCallReader, super().reader(controls)[1]
