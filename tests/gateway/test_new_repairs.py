"""A repair is reported as new once: in the turn after the message that it mends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.formats.prompts.history import Repair
from dovetail.gateway.turn.prompt import new_repairs

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])


def naive(repair: Repair, messages: Sequence[Mapping[str, Any]]) -> bool:
    if not repair.where.startswith("messages["):
        return True
    number = int(repair.where.split("[")[1].split("]")[0])
    return all(message["role"] != "assistant" for message in messages[number + 1 :])


@given(st.lists(ROLES.map(lambda role: {"role": role}), min_size=1, max_size=8), st.data())
def test_as_the_naive_rule(messages: list[dict[str, str]], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.none() | st.integers(0, len(messages) - 1)))
    repairs = [
        Repair("name", "tools" if number is None else f"messages[{number}].content", "reason") for number in numbers
    ]
    assert new_repairs(repairs, messages) == [repair for repair in repairs if naive(repair, messages)]


def test_a_long_history_is_searched_once() -> None:
    messages = [{"role": "user"}] * 100_000
    repairs = [Repair("name", f"messages[{number}].content", "reason") for number in range(100_000)]
    assert new_repairs(repairs, messages) == repairs
