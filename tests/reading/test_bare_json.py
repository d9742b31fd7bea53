"""A call without any markup: whether the arguments fit the tool's schema, whatever that is."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.reading.bare_json import bare_call, fits
from tests.reading import whole

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("arguments", "schema", "fitting"),
    [
        ('{"city": "Paris"}', SCHEMA, True),
        ('{"days": 1}', SCHEMA, False),
        ('{"city": "Paris", "days": "some"}', SCHEMA, False),
        ('{"city": "Paris", "street": ""}', SCHEMA, False),
        ("[]", SCHEMA, False),
        ('{"a": ' + "[" * 5000, SCHEMA, False),
        ("{}", {"required": [["city"], {}, 5, None]}, True),
        ("{}", {"required": "city"}, True),
        ("{}", "object", True),
    ],
)
def test_arguments_fit_a_schema(arguments: str, schema: Any, fitting: bool) -> None:
    assert fits(arguments, schema) is fitting
    call = bare_call(f'{{"name": "get_weather", "arguments": {arguments}}}', {"get_weather": schema})
    assert call == (("get_weather", arguments, ()) if fitting else None)


def test_arguments_are_mended() -> None:
    call = bare_call('{"name": "get_weather", "arguments": {"city": 5, "days": "1"}}', {"get_weather": SCHEMA})
    assert call == ("get_weather", '{"city": "5", "days": 1}', ("mistyped_value",))


@pytest.mark.parametrize(("name", "called"), [("get_weather", True), ("get_time", False)])
@pytest.mark.parametrize("named_first", [True, False])
def test_a_long_call_without_markup(name: str, called: bool, named_first: bool) -> None:
    named, given = f'"name": "{name}"', f'"arguments": {{"city": "{"x" * 3000}"}}'
    text = "{" + ", ".join((named, given) if named_first else (given, named)) + "}"
    message = whole.read("hermes", text)
    assert whole.calls(message) == ([(name, given.partition(": ")[2])] if called else [])
    assert message.content == ("" if called else text)
