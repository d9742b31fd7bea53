"""Truncation: the fewest of the oldest messages go, calls keep their results, and the response says what is gone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.gateway.turn.prompt import truncated
from dovetail.gateway.turn.turn_request import FieldNames, TurnRequest

#: A conversation as units that stay whole: a message, or a call with its results.
_sizes = st.integers(1, 9)
_units = st.lists(st.tuples(_sizes, st.lists(_sizes, max_size=2)), min_size=1, max_size=8)


@given(system=st.lists(_sizes, max_size=2), units=_units, room=st.integers(0, 80))
def test_the_fewest_of_the_oldest_go(system: list[int], units: list[tuple[int, list[int]]], room: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "size": size} for size in system]
    for size, results in units:
        messages.append({"role": "assistant" if results else "user", "size": size})
        messages += ({"role": "tool", "size": result} for result in results)
    names = FieldNames({f"messages[{i}]": f"input[{i + 7}]" for i in range(len(messages))} | {"messages": "input"})
    request = TurnRequest(id="r-0", messages=messages, omitted=("tools[0]",), field_names=names)
    short = truncated(request, lambda tried: sum(message["size"] for message in tried.messages) <= room)

    def whole(dropped: int) -> int:
        return sum(system) + sum(size + sum(results) for size, results in units[dropped:])

    fewest = next((n for n in range(len(units)) if whole(n) <= room), len(units) - 1)
    count = sum(1 + len(results) for _, results in units[:fewest])
    assert short.messages == messages[: len(system)] + messages[len(system) + count :]
    gone = [f"input[{i + 7}]" for i in range(len(system), len(system) + count)]
    assert short.omitted == ("tools[0]", *gone)
    for i, message in enumerate(short.messages):
        (old,) = (j for j, other in enumerate(messages) if other is message)
        assert short.field_names.of(f"messages[{i}].content") == f"input[{old + 7}].content"
