"""Whether a text may still become JSON, compared with trying every way to complete it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.reading.json_prefix import LONGEST_SCALAR, JsonPrefix

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
documents = st.builds(
    lambda value, indent, ascii: json.dumps(value, indent=indent, ensure_ascii=ascii),
    st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values, max_size=3),
    st.none() | st.integers(0, 2),
    st.booleans(),
)
alphabet = '[]{}",:\\ \n\tu0019aeE.-+trufalsn\x01é'


def possible(text: str, cuts: list[int]) -> bool:
    prefix = JsonPrefix()
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return all([prefix.feed(text[a:b]) for a, b in pairwise(places)])


def completions(text: str) -> bool:
    """Whether some ending out of a few thousand makes JSON of `text`: enough for texts of a few characters."""
    inner = ("", '"', '0"', '000"', '0000"', 'n"', "0", "e", "ue", "rue", "se", "lse", "alse", "l", "ll", "ull", "e0")
    closers = ("", "}", "]", "0}", "0]", ":0}", '"":0}', "]}", "}]", ":0}]", '"":0}]', "0]}", "]]", "0]]", "}}", ":0}}")
    for middle in inner:
        for end in closers:
            try:
                json.loads(text + middle + end, parse_constant=lambda constant: 1 / 0)
            except (ValueError, ZeroDivisionError):
                continue
            return True
    return False


@given(documents, st.lists(st.integers(min_value=0), max_size=6), st.text(" \n", max_size=2))
def test_every_beginning_of_json_is_possible(document: str, cuts: list[int], space: str) -> None:
    assert possible(document + space, cuts)
    assert possible(document, list(range(len(document))))
    for mark in ("x", "]", '"', ","):
        assert not possible(document + space + mark, cuts)


@given(st.sampled_from("[{"), st.text(alphabet, max_size=5), st.lists(st.integers(min_value=0), max_size=4))
def test_a_possible_prefix_can_be_completed(opening: str, rest: str, cuts: list[int]) -> None:
    text = opening + rest
    may = possible(text, cuts)
    assert may == possible(text, []) == possible(text, list(range(len(text))))
    if text.count("[") + text.count("{") <= 2:  # so that the endings that are tried are enough
        assert may == completions(text)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("[1.50, -2e9, true]", True),
        ("[1.]", False),
        ("[truer]", False),
        ("[tru", True),
        ("[word", False),
        ("[" + "1" * LONGEST_SCALAR, True),
        ("[" + "1" * (LONGEST_SCALAR + 1), False),
        ("[" + "1" * (LONGEST_SCALAR + 1) + "]", False),
        ("[link](there)", False),
        ("{% if x %}", False),
        ('{"a": "\\u00e9', True),
        ('{"a": "\\q', False),
    ],
)
def test_examples(text: str, may: bool) -> None:
    assert possible(text, []) is may
    assert possible(text, list(range(len(text)))) is may
