"""Regular expressions for texts: translated from JSON Schema's patterns and formats, or made to exclude some texts."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.events import INVISIBLE

#: A regex in pieces: escapes, classes and single characters. `_WORD` has repetitions and the openings of groups too.
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_WORD = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\[(?:\\.|[^\]\\])*\]|\(\??:?|(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??|.",
    re.DOTALL,
)
#: Parts of classes that dialects read differently.
_SETS = re.compile(r"\[|--|&&|~~|\|\|")
#: Characters that need an escape in a JSON string.
_NEED_ESCAPES = ('"', "\\", *map(chr, range(32)))
_MAX_REPEATS = 100
#: Escapes that some dialect does not have.
_UNKNOWN = re.compile(r"\\(?!x..|u....)[^\Wdw_]|\\[0-9]")
_CHARACTER = re.compile(r"\\.|[^\\]", re.DOTALL)
#: Escapes that mean more than these characters in some dialect.
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SPECIAL = frozenset("\\^$.|?*+()[]{}/-")
_OPERATORS = frozenset("^$|()?*+{}")

#: The characters of a name, as a class without its brackets.
NAME = "A-Za-z0-9_.\\-"
_MAX_NAME = 64
_ANYTHING = r"[\s\S]*"
_ALL = frozenset(string.ascii_letters + string.digits + "_.-")

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#: Formats as patterns (RFC 3339, 4122, 2673), without leap seconds and lower-case letters in times.
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
}


def of_the_whole(pattern: Any) -> str | None:
    """A regex of the whole strings that contain a match of `pattern`, which is how JSON Schema reads a pattern.

    None for a pattern with anchors in the middle.
    """
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern) if isinstance(pattern, str) else "^^":
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            branches.append([])
        else:
            branches[-1].append(piece)
    whole = []
    for branch in branches:
        first = branch[:1] == ["^"]
        last = branch[first:][-1:] == ["$"]
        inside = branch[first : len(branch) - last]
        if "^" in inside or "$" in inside:
            return None
        whole.append("".join((r"[\s\S]*" * (not first), *inside, r"[\s\S]*" * (not last))))
    return "|".join(whole)


def of_strings(schema: Mapping[str, Any]) -> list[str]:
    """Regexes of whole strings for the `pattern` and the `format` of a schema, as far as there are any. `\\d` and `\\w`
    are ASCII's."""
    regexes = []
    if "pattern" in schema and (whole := of_the_whole(schema["pattern"])) is not None:
        regexes.append("".join(map(_ascii, _PIECE.findall(whole))))
    if isinstance(named := schema.get("format"), str) and named in FORMATS:
        regexes.append(FORMATS[named])
    return regexes


def _ascii(piece: str) -> str:
    if piece.startswith("["):
        return "".join(_ASCII.get(each, each) for each in _CHARACTER.findall(piece))
    return f"[{_ASCII[piece]}]" if piece in _ASCII else piece


def may_contain(pattern: str, character: str) -> bool:
    """Whether a text that matches may contain the character. True if that is not easy to see."""
    return any(_takes(piece, character) for piece in _PIECE.findall(pattern) if piece not in _OPERATORS)


def _takes(piece: str, character: str) -> bool:
    """Whether a class or an escape may match the character."""
    if piece.startswith("[") and _SETS.search(piece, 1):
        return True
    try:
        return re.fullmatch(piece, character, re.DOTALL | re.ASCII) is not None
    except re.error:
        return True


def of_plain_json(pattern: Any) -> str | None:
    """As `of_the_whole`, in the syntax that xgrammar has: classes, groups, alternatives and up to 100 repetitions.

    None for a pattern with anything else, and for one that matches a string which needs an escape in JSON: xgrammar
    writes no escapes in strings with a pattern.
    """
    whole = of_the_whole(pattern)
    if whole is None:
        return None
    words: list[str] = []
    for word in _WORD.findall(whole):
        if word in ("(", "(?:", ")", "|"):
            words.append(word)
        elif word[0] in "*+?" or (word[0] == "{" and len(word) > 1):
            times = word.removesuffix("?") if len(word) > 1 else word
            if any(int(number) > _MAX_REPEATS for number in re.findall("[0-9]{1,9}", times)):
                return None
            words.append(times)
        elif _is_plain(word):
            words.append(word)
        else:
            return None
    return "".join(words)


def _is_plain(word: str) -> bool:
    """Whether a word is a character or class that every dialect has, and matches nothing that needs an escape in
    JSON."""
    if word in "{}" or word.startswith("(?") or _UNKNOWN.match(word):
        return False
    return not any(_takes(word, character) for character in _NEED_ESCAPES)


def quoted(text: str) -> str:
    """A regex that matches exactly this text, in any dialect."""
    return "".join(_quoted(character) for character in text)


def _quoted(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\{character}" if character in _SPECIAL else character


@functools.lru_cache(256)
def without(words: tuple[str, ...]) -> str:
    """A regex of the texts that contain none of `words`. It needs no "not", which some dialects do not have.

    Each word begins with `<`, or with a new line and `<`, and has no other `<` or new line. The regex divides a text
    into lines, and a line into the parts between its `<`. Or all words begin with the same letter, and have it nowhere
    else. Other words raise `ValueError`.
    """
    if not words:
        return _ANYTHING
    if letter := _letter(words):
        return f"[^{letter}]*(?:{letter}{_not_begun_by((word[1:] for word in words), letter)})*"
    return f"[^\\n<]*{_after_text(words)}"


def _letter(words: tuple[str, ...]) -> str:
    """The letter with which all words begin and which they have nowhere else; "" if there is none."""
    letter = words[0][0]
    return letter if letter.isalpha() and all(len(word) > 1 and word.rfind(letter) == 0 for word in words) else ""


def visible(without: tuple[str, ...], unlike: tuple[str, ...] = ()) -> str:
    """A regex of the texts with a character that a reader can see, and with none of the words in `without`. What can be
    seen begins with none of the words in `unlike`.

    Each word begins with `<` and has no other `<` and no new line, or those in `without` are as in `without`. Other
    words raise `ValueError`.
    """
    if not without and not unlike:
        return f"{_ANYTHING}[^{INVISIBLE}]{_ANYTHING}"
    if without and (letter := _letter(without)):
        begun = f"{letter}{_not_begun_by((word[1:] for word in without), letter)}"
        tag = f"<{_not_begun_by((word[1:] for word in unlike), letter)}"
        return f"[{INVISIBLE}]*(?:[^{INVISIBLE}{letter}<][^{letter}]*|{tag}|{begun})(?:{begun})*"
    tag = f"<{_not_begun_by(word[1:] for word in (*without, *unlike))}"
    return f"[{INVISIBLE}]*(?:[^{INVISIBLE}<][^\\n<]*|{tag}){_after_text(without)}"


def _after_text(words: tuple[str, ...]) -> str:
    """What may follow text without `<` and new lines, in a text that contains none of `words`."""
    anywhere = [word[1:] for word in words if word.startswith("<")]
    in_front = [word[2:] for word in words if word.startswith("\n<")]
    if len(anywhere) + len(in_front) < len(words) or any({*word} & {"<", "\n"} for word in anywhere + in_front):
        raise ValueError("a word to exclude has to begin with '<', or with a new line and '<'")
    inside = f"(?:<{_not_begun_by(anywhere)})*"
    line = f"(?:(?:[^\\n<]+|<{_not_begun_by(anywhere + in_front)}){inside})?"
    return f"{inside}(?:\\n{line})*"


def _not_begun_by(words: Iterable[str], stops: str = r"\n<") -> str:
    """A regex of the texts without `stops`, the inside of a character class, that begin with none of `words`."""
    rest: dict[str, list[str]] = {}
    for word in words:
        rest.setdefault(word[0], []).append(word[1:])
    other = "".join(map(_in_class, sorted(rest)))
    branches = [f"[^{stops}{other}][^{stops}]*"]
    branches += (
        quoted(first) + _not_begun_by(rests, stops) for first, rests in sorted(rest.items()) if "" not in rests
    )
    return f"(?:{'|'.join(branches)})?"


def _in_class(character: str) -> str:
    return r"\n" if character == "\n" else f"\\{character}" if character in "\\]^-/[" else character


def other_names(known: Iterable[str]) -> str:
    """A regex of the names, one or more characters of `NAME`, that are not in `known`.

    Its groups are nested as deeply as known names have a common beginning. A known name is therefore cut to `_MAX_NAME`
    characters, and all names that begin with these are excluded.
    """
    return _other({"", *(name[:_MAX_NAME] for name in known if _ALL.issuperset(name))}, _MAX_NAME)


def _other(known: set[str], left: int) -> str:
    rest: dict[str, set[str]] = {}
    for name in known - {""}:
        rest.setdefault(name[0], set()).add(name[1:])
    branches = [f"[{_ranges(_ALL - rest.keys())}][{NAME}]*"] if rest.keys() < _ALL else []
    if left > 1:
        branches += (quoted(first) + _other(rests, left - 1) for first, rests in sorted(rest.items()))
    return f"(?:{'|'.join(branches)}){'' if '' in known else '?'}"


def _ranges(characters: Iterable[str]) -> str:
    """The characters as a class without its brackets."""
    ranges = ""
    codes = sorted(map(ord, characters))
    for start in (code for code in codes if code - 1 not in codes):
        end = next(code for code in range(start, 128) if code + 1 not in codes)
        few = end < start + 3
        ranges += "".join(map(_in_class, map(chr, range(start, end + 1)))) if few else f"{chr(start)}-{chr(end)}"
    return ranges


#: Characters: of one text, and of all texts together.
_LONGEST_TEXT, _ALL_TEXTS = 100, 2_000


def other_texts(known: Iterable[str]) -> str | None:
    """A regex, in llguidance's dialect, of all texts except those in `known`; None if these are too long for one."""
    tree: dict[str, Any] = {}
    size = 0
    for text in known:
        size += len(text)
        if len(text) > _LONGEST_TEXT or size > _ALL_TEXTS or max(text, default="") > "\uffff":
            return None
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}  # a known text ends here
    return f"^{_outside(tree)}$"


def _outside(node: dict[str, Any]) -> str:
    """A regex of what may follow the letters that lead to `node`."""
    letters = [letter for letter in node if letter]
    options = [] if "" in node else [""]
    options.append(f"[^{''.join(map(_escaped, letters))}][\\s\\S]*" if letters else "[\\s\\S]+")
    options += (_escaped(letter) + _outside(node[letter]) for letter in letters)
    return f"(?:{'|'.join(options)})"


def _escaped(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\u{ord(letter):04x}"
