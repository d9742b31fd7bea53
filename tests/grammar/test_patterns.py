"""Each pattern matches what it should, checked with every short text."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.grammar import patterns


def texts(letters: str, longest: int) -> list[str]:
    return ["".join(text) for length in range(longest + 1) for text in product(letters, repeat=length)]


@pytest.mark.parametrize(
    "words", [(), ("<a",), ("<ab", "<aa", "\n<b"), ("\n<ab",), ("<a", "\n<a"), ("<ab", "\n<aa", "\n<ba")]
)
def test_a_text_without_tags(words: tuple[str, ...]) -> None:
    pattern = re.compile(patterns.without(words))
    for text in texts("ab\n<", 6):
        assert bool(pattern.fullmatch(text)) == (not any(word in text for word in words))


@pytest.mark.parametrize("words", [("a\nb",), ("ab\n", "abb", "a<")])
def test_a_text_without_words(words: tuple[str, ...]) -> None:
    pattern = re.compile(patterns.without(words))
    for text in texts("ab\n<", 6):
        assert bool(pattern.fullmatch(text)) == (not any(word in text for word in words))


@pytest.mark.parametrize("word", ["[a", "a", "<a<", "aa", "\n\n<a", "<a\n", "</a>\n<b"])
def test_only_markup_can_be_excluded(word: str) -> None:
    with pytest.raises(ValueError, match="has to begin with"):
        patterns.without((word,))


@pytest.mark.parametrize("known", [(), ("a",), ("a", "ab", "ba", "aab"), ("a", "b", "é", "")])
def test_other_names(known: tuple[str, ...]) -> None:
    pattern = re.compile(patterns.other_names(known))
    for text in texts("ab-é", 4):
        assert bool(pattern.fullmatch(text)) == (text not in known and re.fullmatch("[ab-]+", text) is not None)
    assert pattern.fullmatch("Z_9.")


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        ("^a$", "a"),
        ("a", r"[\s\S]*a[\s\S]*"),
        ("^a|b$", r"a[\s\S]*|[\s\S]*b"),
        (r"^(a|b)\$$", r"(a|b)\$"),
        ("^[^$]$", "[^$]"),
        ("x(^a|b)", None),
        ("a$b", None),
        (3, None),
    ],
)
def test_the_pattern_of_the_whole_text(pattern: str, whole: str | None) -> None:
    assert patterns.of_the_whole(pattern) == whole


@given(st.text("ab^$|<", max_size=5))
def test_a_pattern_of_the_whole_matches_where_the_pattern_does(pattern: str) -> None:
    whole = patterns.of_the_whole(pattern)
    try:
        searched = re.compile(pattern)
    except re.error:
        return
    for text in texts("ab<", 4) if whole is not None else ():
        assert (searched.search(text) is not None) == (re.fullmatch(whole or "", text) is not None)


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        (r"[a-z]+\d{2}(?:x|y)?", False),
        ("a<b", True),
        ("[^a]", True),
        (".", True),
        (r"\S", True),
        (r"[\s\S]*", True),
        (r"\w\-[<]", True),
        (r"\p{L}", True),  # what Python cannot tell
    ],
)
def test_whether_a_text_may_contain_a_character(pattern: str, may: bool) -> None:
    assert patterns.may_contain(pattern, "<") == may


@pytest.mark.parametrize("length", [63, 64, 65, 3_000])
def test_other_names_than_long_ones(length: int) -> None:
    """Of names of more than 64 characters those that begin alike are left out too."""
    pattern = re.compile(patterns.other_names(["a" * length, "b"]))
    for name in ("a", "a" * 62, "a" * 62 + "c", "a" * 61 + "ca" * 99, "bb"):
        assert pattern.fullmatch(name)
    for name in ("a" * length, "b", ""):
        assert not pattern.fullmatch(name)
    assert (pattern.fullmatch("a" * 65) is None) == (length > 63)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^[a-z]+$", "[a-z]+"),
        (r"^(?:a|[\w-]\d){2,3}?$", r"(?:a|[\w-]\d){2,3}"),
        (r"^\x41\u00e9\/\.$|^b*?$", r"\x41\u00e9\/\.|b*"),
        ("^$", ""),
        ("a", None),
        ("^.$", None),
        (r"^\s$", None),
        ("^[^a]$", None),
        ('^"$', None),
        (r"^\u0022$", None),
        ("^[a-z]{1,101}$", None),
        ("^a{,2}$", None),
        ("^a{2$", None),
        ("^(?=a)b$", None),
        ("^(?<x>a)$", None),
        (r"^\bA$", None),
        (r"^(a)\1$", None),
        (r"^\p{L}$", None),
        ("^[[a]$", None),
        ("^[a&&b]$", None),
        ("^a^b$", None),
        (3, None),
    ],
)
def test_patterns_of_strings_without_escapes(pattern: Any, expected: str | None) -> None:
    assert patterns.of_plain_json(pattern) == expected


@given(st.text())
def test_a_quoted_text_matches_itself_alone(text: str) -> None:
    assert re.fullmatch(patterns.quoted(text), text)


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01"]),
        ("date", ["2024-09-30"], ["24-01-01", "2024-1-1", "20240101"]),
        ("time", ["23:59:59Z", "12:00:00.5+01:30"], ["24:00:00Z", "12:00:00", "12:60:00Z", "12:00:00+24:00"]),
        ("date-time", ["2024-02-29T23:59:59.25Z"], ["2024-02-30T23:59:59Z", "2024-02-29"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b"]),
        ("ipv4", ["0.0.0.0", "255.255.255.255"], ["256.1.1.1", "1.1.1", "01.1.1.1", "1.1.1.1.1"]),
    ],
)
def test_formats(name: str, valid: list[str], invalid: list[str]) -> None:
    validator = jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)
    for text in valid + invalid:
        assert (re.fullmatch(patterns.FORMATS[name], text) is not None) == (text in valid) == validator.is_valid(text)


def test_escapes_mean_the_same_in_every_dialect() -> None:
    assert patterns.of_strings({"pattern": r"^\d[\w-]$"}) == ["[0-9][A-Za-z0-9_-]"]
    assert patterns.of_strings({"pattern": "a$b", "format": "hostname"}) == []
