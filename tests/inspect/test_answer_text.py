"""What the text of an answer is: JSON, a call without markup, a loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.inspect.answer_text import call_in, is_json, loop_at_the_end

TOOLS = ("get_weather", "send")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Paris"}}', "get_weather"),
        ('Sure:\n```json\n{"name": "send", "parameters": {}}\n```', "send"),
        ('I use {"a": {"b": 1}} and [{"function": {"name": "send", "arguments": "{}"}}]', "send"),
        ('{"tool": "send", "args": {"name": "x", "arguments": {}}}', "send"),
        ('```python\nget_weather(city="Paris")\n```', "get_weather"),
        ('get_weather("Paris")', "get_weather"),
        ("get_weather(city) gives the weather", None),
        ('get_weather("Paris")\nsend("Paris")', None),
        ('{"name": "other", "arguments": {}}', None),
        ('{"name": "get_weather"}', None),
        ('{"name": ["get_weather"], "arguments": {}}', None),
        ('{"name": "get_weather", "arguments": {"city": ', None),
        ("{" * 100 + '{"name": "send", "arguments": {}}', None),
        ("[" * 100_000, None),
        ('{"a":' * 15_000, None),
        ("", None),
    ],
)
def test_a_call_without_markup(text: str, name: str | None) -> None:
    assert call_in(text, TOOLS) == name
    assert call_in(text, ()) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"a": 1}', True), (" [1]\n", True), ("3", False), ('"a"', False), ("a {}", False), ("[" * 100_000, False)],
)
def test_json(text: str, expected: bool) -> None:
    assert is_json(text) is expected


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("So. " + "Boil an egg:\n" * 5 + "Boil", ("Boil an egg:", 5)),
        ("A list: " + "ha" * 30, ("ha", 30)),
        ("x" * 40, ("x", 40)),
        ("x" * 39, None),
        ("abcdefghijklm" * 3, None),
        ("-" * 4000, None),
        ("| a |\n" + "|---|" * 30, None),
        (" ".join(map(str, range(500))), None),
        ("", None),
    ],
)
def test_a_loop(text: str, loop: tuple[str, int] | None) -> None:
    assert loop_at_the_end(text) == loop


@given(st.text("ab :", max_size=30), st.text("abc", min_size=1, max_size=12), st.integers(0, 60), st.integers(0, 11))
def test_the_shortest_period_is_found(before: str, unit: str, times: int, cut: int) -> None:
    """As by counting, for every period, how many of the last characters are those one period before."""
    text = (before + unit * times + unit[: cut % len(unit)]).rstrip()
    found, expected = loop_at_the_end(text), naive(text)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        period, length = expected
        assert len(found.text) <= period and found.text in text
        assert (length - period) // period <= found.times <= length // period


def naive(text: str) -> tuple[int, int] | None:
    for period in range(1, len(text) // 4 + 1):
        same = [text[at] == text[at - period] for at in range(len(text) - 1, period - 1, -1)]
        length = period + (same.index(False) if False in same else len(same))
        if length >= max(4 * period, 40):
            return period, length
    return None
