"""What an engine says of an error reaches a client without paths, addresses and names of its modules."""

from __future__ import annotations

import pytest

from dovetail.backends.remote.errors import GAP, redacted


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("see http://h/x?key=1 now", f"see {GAP} now"),
        (r"in C:\Users\me\x.py", f"in {GAP}"),
        ("in /srv/model/x.py or ~/x.py", f"in {GAP} or {GAP}"),
        ("at 10.0.0.1, 10.0.0.1:8000 and [fe80::1]", f"at {GAP}, {GAP} and {GAP}"),
        ("host-1.internal:8000 is gone", f"{GAP} is gone"),
        ("vllm.v1.engine failed", f"{GAP} failed"),
        ("-a.b and 1-a.b", f"{GAP} and {GAP}"),
        ('bad\nTraceback (most recent call last):\n  File "/x", line 1', f"bad\n{GAP}"),
    ],
)
def test_what_is_private_is_left_out(words: str, shown: str) -> None:
    assert redacted(words) == shown


@pytest.mark.parametrize("words", ["temperature must be at most 2.5.", "2.0e-5", "version 0.32.1 has n/a", "tools[0]"])
def test_numbers_and_versions_stay(words: str) -> None:
    assert redacted(words) == words


@pytest.mark.parametrize("unit", ["a", "a.", "a-", "a@", "a-.", "1.", "1", "~", ":", "/a", "[", "\\", "0:", 'File "'])
def test_what_a_client_repeats_is_read_once(unit: str) -> None:
    """Linear in its length. A pattern that tries each place anew takes minutes for some of these."""
    redacted(unit * 50_000)
