"""Field names: a turn's errors and reports name the fields of chat completions, a client knows those of its own API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from dovetail.errors import DovetailError
from dovetail.formats.prompts.history import Repair

#: Where a path may be cut: before an index, a dot, or the "#" of a JSON pointer.
_STEP = re.compile(r"[.\[#]")


class FieldNames(msgspec.Struct, frozen=True):
    """The client's names for fields of a `TurnRequest`.

    `prefixes` maps the beginning of a path (`messages[2].tool_calls[0].function`) to what the client calls it
    (`input[3]`). The longest one counts; a path without one keeps its name.
    """

    prefixes: Mapping[str, str] = {}

    def of(self, path: str) -> str:
        """The client's name for `path`."""
        if not self.prefixes:
            return path
        for end in (len(path), *(step.start() for step in reversed(list(_STEP.finditer(path))))):
            if (name := self.prefixes.get(path[:end])) is not None:
                return name + path[end:]
        return path

    def of_repair(self, repair: Repair) -> Repair:
        """`repair` with the client's name for its place."""
        return msgspec.structs.replace(repair, where=self.of(repair.where)) if self.prefixes else repair

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Errors inside this context name the client's fields."""
        try:
            yield
        except DovetailError as error:
            if error.param is not None and (name := self.of(error.param)) != error.param:
                error.message = error.message.replace(error.param, name)
                error.param = name
            raise
