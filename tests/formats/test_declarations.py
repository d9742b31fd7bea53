"""Tool declarations are written once for the same tools, and a cached declaration is never that of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest
from dovetail.formats.declarations import cached, error_in_message, sorted_deeply, sorted_json


def counting() -> tuple[Callable[[Any], str], list[Any]]:
    """A cached function, and the tools of each call of the function itself."""
    calls: list[Any] = []

    @cached
    def declare(tools: Any) -> str:
        calls.append(tools)
        return repr(tools)

    return declare, calls


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_the_same_tools_are_declared_once() -> None:
    declare, calls = counting()
    for _ in range(3):
        assert declare([tool("a"), tool("b")]) == repr([tool("a"), tool("b")])
    assert len(calls) == 1


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from((0.0, -0.0, 1.0, 1.5))
    | st.text("a1\n", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1", max_size=2), inner, max_size=3),
    max_leaves=5,
)
_first, _ = counting()


@given(st.lists(st.builds(lambda schema: tool(parameters={"x": schema}), values), max_size=2))
def test_a_cached_declaration_equals_a_new_one(tools: list[dict[str, Any]]) -> None:
    """All examples share one cache, and Python takes some of their tools to be equal: 1, 1.0 and true are."""
    assert _first(tools) == repr(tools)
    assert _first(json.loads(json.dumps(tools))) == repr(tools)


def test_the_least_recently_used_declaration_is_dropped() -> None:
    declare, calls = counting()
    for name in ("first", *(f"t{i}" for i in range(255)), "first", "one too many", "first", "t0"):
        declare([tool(name)])
    assert [tools[0]["function"]["name"] for tools in calls[256:]] == ["one too many", "t0"]


def test_long_tools_and_tools_that_are_not_json_are_not_cached() -> None:
    declare, calls = counting()
    cyclic: dict[str, Any] = tool()
    cyclic["function"]["parameters"] = {"a": cyclic, "b": cyclic}
    for tools in ([tool("n" * 256 * 1024)], [cyclic], [tool(description="\ud800")], [tool(parameters={"x": object()})]):
        for _ in range(2):
            declare(tools)
    assert len(calls) == 8


def test_a_long_declaration_of_short_tools_is_not_cached() -> None:
    calls: list[Any] = []

    @cached
    def declare(tools: Any) -> str:
        calls.append(tools)
        return "x" * (256 * 1024 + 1)

    assert declare([tool()]) == declare([tool()])
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ({1: 1}, {"1": 1}),
        ((1,), [1]),
        (b"eA==", "eA=="),
        (object(), {}),
        ("\ud800", "\\ud800"),
    ],
)
def test_similar_tools_are_told_apart(one: Any, other: Any) -> None:
    declare, calls = counting()
    for value in (one, other, one):
        tools = [tool(parameters={"x": value})]
        assert declare(tools) == repr(tools)
    assert len(calls) >= 2


def test_errors_about_tools_of_a_message_name_the_message() -> None:
    error = InvalidRequest("tools[3].type is bad", param="tools[3].type")
    moved = error_in_message(error, 2, 5)
    assert (type(moved), str(moved), moved.param) == (
        InvalidRequest,
        "messages[5].tools[1].type is bad",
        "messages[5].tools[1].type",
    )
    assert error_in_message(error, 4, 5) is error
    assert error_in_message(other := InvalidRequest("no"), 0, 0) is other


def test_tools_of_a_wrong_type_are_refused_every_time() -> None:
    declare, calls = counting()
    for tools in (5, [tool(description=5)], [tool(description=object())]):
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                declare(tools)
    assert calls == []


@given(values)
def test_keys_are_sorted_and_nothing_else_is_changed(value: Any) -> None:
    assert sorted_deeply(value) == value
    assert sorted_json(value) == json.dumps(sorted_deeply(value), ensure_ascii=False, separators=(",", ":"))
    assert sorted_deeply({"b": ({"d": 1, "c": 2},), "a": 1}) == {"a": 1, "b": [{"c": 2, "d": 1}]}
