"""What the tool declarations of all families share: a cache, a size limit, and JSON with sorted keys.

An agent sends the same tools with every request, and they take longer to write than the rest of a prompt.
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

_MAX_CACHED = 256  # declarations of one family
# Bytes of tools as JSON, and characters of a declaration: longer ones are not cached.
_MAX_CACHED_LENGTH = 256 * 1024
# Every line repeats the indentation of all levels above it, so that a deep schema takes many times its length as JSON.
_MAX_SCHEMA_LENGTH = 4 * 1024 * 1024  # characters of the schemas in one declaration
_MAX_COPIED_LENGTH = 32 * _MAX_SCHEMA_LENGTH  # the same, with each text counted once for every object around it
_encode = msgspec.json.Encoder().encode
_TOOL_FIELD = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)


def cached(declare: Callable[[Tools], str]) -> Callable[[Tools], str]:
    """`declare` with a cache of its latest results. Tools with the same values and types have the same declaration.

    Raises `InvalidRequest` for tools of a wrong type, and whatever `declare` raises.
    """
    cache: OrderedDict[bytes, str] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(declare)
    def declared(tools: Tools) -> str:
        try:
            length = len(_encode(tools))
            # The key is marshalled because JSON writes NaN as null and a key 1 as "1". Encoding to JSON first finds
            # cycles, on which marshal never ends. Version 2 of marshal is the last that writes equal values as equal
            # bytes: later versions refer back to objects that occurred before.
            plain: Any = tools
            key = marshal.dumps(plain, 2) if length <= _MAX_CACHED_LENGTH else b""
        except (RecursionError, TypeError, ValueError):  # a cycle, for example, which is reported below
            key = b""
        if not key:
            check_tool_types(tools)
            return declare(tools)
        with lock:
            if (text := cache.get(key)) is not None:
                cache.move_to_end(key)
                return text
        check_tool_types(tools)
        text = declare(tools)
        if len(text) > _MAX_CACHED_LENGTH:
            return text
        with lock:
            cache[key] = text
            if len(cache) > _MAX_CACHED:
                cache.popitem(last=False)
        return text

    return declared


class SizeLimit:
    """Limits the length of all schemas in one declaration.

    `tool` is the index of the tool that is being written, for the error message.
    """

    def __init__(self) -> None:
        self.tool = 0
        self._length = self._copied = 0

    def add(self, length: int) -> None:
        """Count `length` more characters. Raises `InvalidRequest` naming the tool if they exceed the limit."""
        self._length += length
        if self._length > _MAX_SCHEMA_LENGTH:
            self._refuse(f"are longer than {_MAX_SCHEMA_LENGTH} characters")

    def text(self, text: str) -> str:
        """Count `text` and return it. Raises as `add` does."""
        self.add(len(text))
        return text

    def copy(self, length: int) -> None:
        """Count the `length` characters of an object that become part of the object around it. Raises as `add` does."""
        self._copied += length
        if self._copied > _MAX_COPIED_LENGTH:
            self._refuse("are too long to nest as deeply as they do")

    def _refuse(self, reason: str) -> NoReturn:
        where = f"tools[{self.tool}].function.parameters"
        raise InvalidRequest(f"{where}: the schemas of all tools, as the model is shown them, {reason}", param=where)


def error_in_message(error: DovetailError, first: int, i: int) -> DovetailError:
    """`error` with the right field name if it is about a tool that came from ``messages[i].tools``.

    The tools of the request and of that message were declared as one list; those of the message start at `first`.
    """
    field = _TOOL_FIELD.fullmatch(error.param or "")
    if field is None or int(field[1]) < first:
        return error
    param = f"messages[{i}].tools[{int(field[1]) - first}]{field[2]}"
    return type(error)(error.message.replace(field[0], param, 1), param=param)


def sorted_deeply(value: Any, by: Callable[[str], str] | None = None) -> Any:
    """`value` with the keys of all objects sorted, `by` what this function makes of a key."""
    if isinstance(value, Mapping):
        return {key: sorted_deeply(value[key], by) for key in sorted(value, key=by)}
    if isinstance(value, list | tuple):
        return [sorted_deeply(item, by) for item in value]
    return value


def sorted_json(value: Any) -> str:
    """`value` as JSON without spaces and with the keys of all objects sorted."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
