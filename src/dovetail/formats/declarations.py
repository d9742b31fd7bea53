"""Tool declarations: as JSON in a fixed order, and remembered, whatever their notation.

An agent sends the same tools with every request, and of all that a prompt holds they take longest to write.
"""

from __future__ import annotations

import functools
import json
import marshal
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from dovetail.conversation import check_tool_types
from dovetail.errors import DovetailError, InvalidRequest

Tools = Sequence[Mapping[str, Any]]

_MOST = 256  # declarations of one family
# Bytes of tools as JSON, and characters of their declaration: what is longer is written each time.
_LONGEST = 256 * 1024
_MOST_WRITTEN = 4 * 1024 * 1024  # characters of the schemas in one declaration
_MOST_COPIED = 32 * _MOST_WRITTEN  # the same, each text counted once for every object that it is in
_encode = msgspec.json.Encoder().encode
_OF_TOOL = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)


def remembered(declare: Callable[[Tools], str]) -> Callable[[Tools], str]:
    """`declare` with its latest results kept: tools of the same values and types have the same declaration.

    Tools of a wrong type are refused before they are declared. Raises what `declare` raises.
    """
    kept: OrderedDict[bytes, str] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(declare)
    def declared(tools: Tools) -> str:
        try:
            length = len(_encode(tools))
            # JSON alone takes NaN for null, and 1 for "1" in a key; this alone writes a cycle for ever. The version is
            # the last in which equal values have equal bytes: later ones refer back to objects that were there before.
            plain: Any = tools
            key = marshal.dumps(plain, 2) if length <= _LONGEST else b""
        except (RecursionError, TypeError, ValueError):  # cycles, say; whoever declares or checks them will tell
            key = b""
        if not key:
            check_tool_types(tools)
            return declare(tools)
        with lock:
            if (text := kept.get(key)) is not None:
                kept.move_to_end(key)
                return text
        check_tool_types(tools)
        text = declare(tools)
        if len(text) > _LONGEST:
            return text
        with lock:
            kept[key] = text
            if len(kept) > _MOST:
                kept.popitem(last=False)
        return text

    return declared


class Written:
    """How much of the tools' schemas has been written: each line again holds the indentation of all levels above it."""

    def __init__(self) -> None:
        self.tool = 0  # the number of the one that is being written
        self._written = self._copied = 0

    def add(self, length: int) -> None:
        """Raises `InvalidRequest` naming the tool once there is too much."""
        self._written += length
        if self._written > _MOST_WRITTEN:
            self._refuse(f"are longer than {_MOST_WRITTEN} characters")

    def text(self, text: str) -> str:
        """`text`, which is added. Raises as `add` does."""
        self.add(len(text))
        return text

    def copy(self, length: int) -> None:
        """An object's text becomes part of that of the object above. Raises as `add` does."""
        self._copied += length
        if self._copied > _MOST_COPIED:
            self._refuse("are too long to nest as deeply as they do")

    def _refuse(self, why: str) -> NoReturn:
        where = f"tools[{self.tool}].function.parameters"
        raise InvalidRequest(f"{where}: the schemas of all tools, as the model is shown them, {why}", param=where)


def of_message(error: DovetailError, first: int, i: int) -> DovetailError:
    """`error` about tools of which those from number `first` on are in `messages[i]`, naming its field there."""
    found = _OF_TOOL.fullmatch(error.param or "")
    if found is None or int(found[1]) < first:
        return error
    param = f"messages[{i}].tools[{int(found[1]) - first}]{found[2]}"
    return type(error)(error.message.replace(found[0], param, 1), param=param)


def sorted_deeply(value: Any) -> Any:
    """`value` with the keys of every object in it sorted."""
    if isinstance(value, Mapping):
        return {key: sorted_deeply(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [sorted_deeply(item) for item in value]
    return value


def sorted_json(value: Any) -> str:
    """`value` as JSON without spaces, the keys of every object sorted."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
