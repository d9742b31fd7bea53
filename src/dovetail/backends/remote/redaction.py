"""Removes what is private from an engine's own words before a client sees them: paths, addresses and tracebacks."""

from __future__ import annotations

import re

#: What takes the place of each.
GAP = "…"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\).*|\bFile \"[^\"]*\", line \d+.*", re.S)
#: Cautious: a dotted word may be a host, a module or a file, and none of them is a client's business. An engine may
#: repeat what a client sent, so each alternative begins at the start of a word only and never backtracks into one:
#: otherwise 4 KB of `a-a-a-…` would take a second.
_PRIVATE = re.compile(
    r"""
    (?<!\w)\w++://\S++                               # a URL
    | (?<![\w.@+~-])(?:[A-Za-z]:)?+[\w.@+~-]*+(?:[\\/][\w.@+~-]++){2,}+[\\/]?   # a path of two parts or more
    | ~?[\\/][\w@+~-]++\.\w++                       # a file in the root or home folder
    | \[?(?:[0-9A-Fa-f]{0,4}:){2,}+[0-9A-Fa-f.]*+\]? # an IPv6 address
    | (?<![\w-])(?<![\w-]\.)[\w-]++(?:\.[\w-]++)*+:\d{2,5}\b   # a host and port
    | \b(?:\d{1,3}\.){3}\d{1,3}\b                    # an IPv4 address
    # a name with dots that is no number or version
    | (?<![\w-])(?<![\w-]\.)(?!-?\d++(?:\.\d++)++(?:[eE][+-]?\d++)?+(?!\.?[\w-]))[\w-]++(?:\.[\w-]++)++
    """,
    re.X,
)


def redacted(text: str) -> str:
    """`text` without paths, URLs, addresses, names with dots, and everything from a traceback on."""
    return _PRIVATE.sub(GAP, _TRACEBACK.sub(GAP, text))
