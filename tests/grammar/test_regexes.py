"""The size of regexes is bounded over a request, and repeated classes are checked by length."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import SchemaRefused
from dovetail.grammar.schemas import regexes
from dovetail.grammar.schemas.check import Checker, RegexBudget, checker

CLASSES = ["[a-c]", "[^a]", "\\d", "\\w", "\\S", ".", "a", "\\.", "\\p{L}", "[\\p{Lu}\\d]", "é"]
COUNTS = ["{0}", "{2}", "{0,2}", "{1,3}", "{2,}", "{0,}"]


@given(st.sampled_from(CLASSES), st.sampled_from(COUNTS), st.text("abA1.é\n😀\u0301", max_size=5))
def test_a_counted_class_means_the_same_as_its_pattern(piece: str, count: str, text: str) -> None:
    pattern = f"^{piece}{count}$"
    assert regexes.counted(pattern) is not None
    direct = jsonschema_rs.Draft202012Validator({"pattern": pattern}).is_valid(text)
    assert (Checker({"pattern": pattern}, "x").fault(json.dumps(text)) is None) == direct


@pytest.mark.parametrize(
    "pattern",
    [
        "^a{2}",
        "a{2}$",
        "^ab{2}$",
        "^(a){2}$",
        "^a{2}b$",
        "^a+$",
        "^\\b{2}$",
        "^${2}$",
        "^|{2}$",
        "^a{,2}$",
        "",
        None,
        1,
    ],
)
def test_other_patterns_stay_as_they_are(pattern: object) -> None:
    assert regexes.counted(pattern) is None


def test_a_pattern_that_became_a_length_is_named_where_it_was_sent() -> None:
    schema = {"properties": {"a": {"allOf": [{"maxLength": 9}], "pattern": "^[a-z]{1,3}$"}}}
    fault = Checker(schema, "x").fault('{"a": "abcd"}')
    assert fault is not None and fault.detail == "/a against #/properties/a/pattern"
    fault = Checker(schema, "x").fault('{"a": "abcdefghijk"}')
    assert fault is not None and fault.detail == "/a against #/properties/a/allOf/0/maxLength"


def test_only_texts_have_patterns() -> None:
    assert Checker({"pattern": "^a{2}$"}, "x").fault("7") is None


@pytest.mark.parametrize(
    ("regex", "size"),
    [
        ("abc", 3),
        ("a{10}", 10),
        ("(ab){10}", 20),
        ("(a{3}b){10,20}", 80),
        ("\\p{L}", 600),
        ("\\p{L}{1,200}", 120_000),
        ("[\\p{L}\\p{N} .,-]{1,200}", 241_600),
        ("\\d{4}", 20),
        (".{3}", 48),
        ("a{99999999}", 999_999),
        (")a", 2),
        (None, 0),
    ],
)
def test_sizes(regex: str | None, size: int) -> None:
    assert regexes.size(regex) == size


def test_every_regex_of_a_schema_counts() -> None:
    schema = {
        "properties": {"pattern": {"pattern": "abc"}},
        "patternProperties": {"ab": {"items": [{"pattern": "a"}]}},
        "enum": [{"pattern": "abcdef"}],
    }
    assert regexes.total_size(schema) == 6


def test_large_regexes_are_refused_before_they_are_compiled() -> None:
    for pattern in ("^x\\p{L}{1,2000}$", "^(\\p{L}{1,99}){1,99}$"):
        with pytest.raises(SchemaRefused, match="are too large together"):
            Checker({"pattern": pattern}, "tools[0].function.parameters")


def test_a_request_spends_one_budget_whatever_is_cached() -> None:
    schemas = [{"pattern": f"^{i}\\p{{L}}{{1,30}}$"} for i in range(4)]
    for _ in range(2):
        budget = RegexBudget()
        fitting = 0
        for schema in schemas:
            try:
                checker(schema, "tools[0].function.parameters", budget)
                fitting += 1
            except SchemaRefused:
                assert budget.remaining < 18_000
        assert fitting == 2
