"""Stored responses as history: those that a request goes on from, and single items that it refers to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest, StoreUnavailable, UnknownPrevious
from dovetail.gateway.apis.responses.conversation import FindItem, kind_of, user_messages
from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
from dovetail.gateway.store.interface import StoreError

#: The ids of items that this server made, of an output or of an input: they name the response.
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_(?:in)?[0-9]+")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


class History:
    """What is stored before a request. `max_size`: how many bytes of it a request may load."""

    def __init__(self, store: ResponseStore | None, previous: str | None, max_size: int) -> None:
        self._store = store
        self._previous = previous
        self._room = max_size
        self._items: dict[str, dict[str, Any]] = {}  # by id, of the responses in `_loaded`
        self._loaded: set[str] = set()

    def items(self) -> list[list[dict[str, Any]]]:
        """The items of each response before the request, oldest first: its input, and what the model answered.

        Of what comes before a compaction, only the user's messages.

        Raises `InvalidRequest` for a response that is not stored, and for more than the request may load.
        """
        turns: list[list[dict[str, Any]]] = []
        name, compacted = self._previous, False
        while name is not None:
            stored = self._load(name)
            items = _items(stored)
            if compacted:
                items = user_messages(items)
            elif items and kind_of(items[-1]) == "compaction":
                items, compacted = [*user_messages(items), items[-1]], True
            turns.append(items)
            name = stored.previous
        return turns[::-1]

    def find_item(self, name: str) -> Mapping[str, Any] | None:
        """The stored item with the id `name`; None if there is none.

        Raises `InvalidRequest` for more than the request may load: many references may name one long item.
        """
        match = _ITEM_ID.fullmatch(name)
        if match is None:
            return None
        response = f"resp_{match[1]}"
        if response not in self._loaded:
            self._loaded.add(response)
            if (stored := read(self._store, response)) is not None:
                self._take(stored.size, "input")
                self._items |= {item["id"]: item for item in _items(stored)}
        item = self._items.get(name)
        if item is not None:
            self._take(len(msgspec.json.encode(item)), "input")
        return item

    def found_item(self, name: str) -> Mapping[str, Any] | None:
        """The item that `find_item` has found."""
        return self._items.get(name)

    def _load(self, name: str) -> StoredResponse:
        field = "previous_response_id"
        if self._store is None:
            raise InvalidRequest(f"{field}: this server stores no responses: send the whole history", param=field)
        stored = read(self._store, name)
        if stored is None:
            raise UnknownPrevious(f"{field}: there is no stored response {name!r:.80}", param=field)
        self._take(stored.size, field)
        return stored

    def _take(self, size: int, field: str) -> None:
        self._room -= size
        if self._room < 0:
            raise InvalidRequest(f"{field}: the stored items are too long together", param=field)


def read(store: ResponseStore | None, name: str) -> StoredResponse | None:
    """The stored response with the id `name`; None if there is none. Raises `StoreUnavailable` if the store fails."""
    try:
        return store.get(name) if store is not None else None
    except StoreError as error:
        raise StoreUnavailable("stored responses cannot be read now; try again later") from error


def listed_input(value: Any, response_id: str, find_item: FindItem) -> list[dict[str, Any]]:
    """The `input` of a request as items that all have an id and a status. References become the items themselves."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    return [_listed(item, f"{response_id}_in{i}", find_item) for i, item in enumerate(value or ())]


def _listed(item: Mapping[str, Any], rest_of_id: str, find_item: FindItem) -> dict[str, Any]:
    kind = kind_of(item)
    if kind == "item_reference":
        return dict(find_item(item["id"]) or item)
    listed = {"status": "completed", **item, "type": kind}
    if listed.get("id") is None:
        listed["id"] = f"{_PREFIXES.get(kind, 'item')}_{rest_of_id}"
    if kind == "message" and not isinstance(listed.get("content"), list):
        output = listed["role"] == "assistant"
        part = {"type": "output_text" if output else "input_text", "text": listed.get("content") or ""}
        listed["content"] = [part | ({"annotations": []} if output else {})]
    return listed


def _items(stored: StoredResponse) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = msgspec.json.decode(stored.input)
    items += msgspec.json.decode(stored.body)["output"]
    if stored.record:  # attached to the answer, whether the client asked for it or not
        name = f"rs_{stored.id.removeprefix('resp_')}_{len(items)}"
        items.append({"type": "reasoning", "id": name, "summary": [], "encrypted_content": stored.record})
    return items
