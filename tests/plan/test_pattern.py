"""Patterns from a config: they match what Python's own do, never for long, and what is not read is refused."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.pattern import UnreadPattern, matches

PIECES = ["a", "b", ".", "a*", "b+", "(", "(?:", ")", "|", "[ab]", "[^a]", "?", "*", "{1,2}", "{2}", "(?!", "(?=", "$"]
PIECES += [r"\b", r"\.", r"\w", "{1,}", "*?", "^"]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.text("ab.", max_size=6))
def test_it_matches_what_re_matches(pattern: str, text: str) -> None:
    try:
        found = matches(pattern, text)
    except UnreadPattern:
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            expected = re.match(pattern, text) is not None
    except re.error:
        return  # re refuses to repeat what has no width
    assert found == expected


MODULE = "model.layers.30.mlp.experts.0.down_proj"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r".*mlp\.(gate|up|gate_up|down)_proj.*", False),
        (r".*layers\.\d+\.mlp\.experts\.\d+\..*_proj$", True),
        (r"^(?!.*self_attn).*", True),
        (r"model\.layers\.(0|1|30)\.", True),
        (r"layers", False),
        ("", True),
        (r"(([a-z0-9._]+)+)+!", False),
        ("(.*.*)*" * 60 + "!", False),
        ("(((.?){99}){99}){99}!", False),
        ("(" * 15 + "a*" + ")*" * 15 + "!", False),
    ],
)
def test_what_quantizers_write_and_what_would_never_end(pattern: str, expected: bool) -> None:
    assert matches(pattern, MODULE) == expected


UNREAD = r"a{99999999999999999999} a{101} (a a) * a** a*+ (a)\1 (?P<x>a) (?i)a (?<=a)b [a ".split()


@pytest.mark.parametrize("pattern", [*UNREAD, "\\", "(" * 5000, "(" * 20 + ")" * 20], ids=lambda pattern: pattern[:20])
def test_what_is_not_read_is_said(pattern: str) -> None:
    with pytest.raises(UnreadPattern, match=r"."):
        matches(pattern, MODULE)
