"""A naive matcher of GBNF, written from llama.cpp's guide (grammars/README.md) and its reading of tokens."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Iterable
from typing import Any

from dovetail.grammar import Grammar
from dovetail.tokens import Tokenizer

#: A terminal: a token's id; or whether characters are excluded, and their ranges. A string is the name of a rule.
Item = Any
Stack = tuple[Any, ...]  # an item, and the rest of the stack: nested pairs

_PIECE = re.compile(
    r'"((?:\\.|[^"\\])*)"|(\[(?:\\.|[^\]\\])*\])|<\[(\d+)\]>|([A-Za-z0-9-]+)|([()|.*+?]|\{\d+(?:,\d*)?\})|( |#.*)',
    re.DOTALL,
)
_CHARACTER = re.compile(r"\\x(..)|\\u(....)|\\U(........)|\\(.)|(.)", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


def _code(match: re.Match[str]) -> int:
    hexadecimal = match[1] or match[2] or match[3]
    return int(hexadecimal, 16) if hexadecimal else ord(_SIMPLE[match[4]] if match[4] else match[5])


def _class(text: str) -> Item:
    negated = text.startswith("[^")
    found = [*_CHARACTER.finditer(text[1 + negated : -1])]
    ranges, at = [], 0
    while at < len(found):
        is_range = at + 2 < len(found) and found[at + 1][0] == "-"
        ranges.append((_code(found[at]), _code(found[at + 2 if is_range else at])))
        at += 3 if is_range else 1
    assert negated or ranges != [(0, 0)], "llama.cpp takes no NUL"
    return negated, tuple(ranges)


class _Parsed:
    def __init__(self, text: str) -> None:
        self.rules: dict[str, list[list[Item]]] = {}
        for line in text.splitlines():
            name, _, body = line.partition(" ::= ")
            assert re.fullmatch("[a-zA-Z0-9-]+", name), line
            assert name not in self.rules, line
            pieces = [match for match in self._pieces(body) if match[6] is None]
            self.rules[name], rest = self._alternatives(pieces)
            assert not rest, line
        used = {item for rule in self.rules.values() for option in rule for item in option if isinstance(item, str)}
        assert used <= self.rules.keys(), used - self.rules.keys()
        self._check_not_left_recursive()

    @staticmethod
    def _pieces(body: str) -> Iterable[re.Match[str]]:
        at = 0
        while at < len(body):
            match = _PIECE.match(body, at)
            assert match, body[at : at + 60]
            yield match
            at = match.end()

    def _named(self, options: list[list[Item]]) -> str:
        name = f"_{len(self.rules)}"
        self.rules[name] = options
        return name

    def _alternatives(self, pieces: list[re.Match[str]]) -> tuple[list[list[Item]], list[re.Match[str]]]:
        options: list[list[Item]] = [[]]
        last: list[Item] = []  # what a repetition is about
        while pieces:
            piece, pieces = pieces[0], pieces[1:]
            mark = piece[5]
            if mark == ")":
                return options, [piece, *pieces]
            if mark == "|":
                options.append([])
                last = []
            elif mark and mark[0] in "*+?{":
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(mark) or _times(mark)
                assert last, "nothing to repeat"
                assert max(least, most or 0) <= 2000 and (most is None or least <= most)
                options[-1][len(options[-1]) - len(last) :] = [self._repeated(last, least, most)]
            else:
                if mark == "(":
                    inner, (closing, *pieces) = self._alternatives(pieces)
                    assert closing[5] == ")"
                    last = [self._named(inner)]
                elif mark == ".":
                    last = [(True, ())]
                elif piece[1] is not None:
                    last = [(False, ((code, code),)) for code in map(_code, _CHARACTER.finditer(piece[1]))]
                elif piece[2] is not None:
                    last = [_class(piece[2])]
                else:
                    last = [int(piece[3])] if piece[3] is not None else [piece[4]]
                options[-1] += last
        return options, []

    def _repeated(self, items: list[Item], least: int, most: int | None) -> str:
        if most is None:
            name = self._named([])
            self.rules[name] = [[*items, name], []]
        else:
            name = self._named([[]])
            for _ in range(most - least):
                name = self._named([[*items, name], []])
        return self._named([[*items * least, name]])

    def _check_not_left_recursive(self) -> None:
        """llama.cpp refuses a rule that may begin with itself."""
        empty: set[str] = set()
        while new := {
            name
            for name, options in self.rules.items()
            if name not in empty and any(all(item in empty for item in option) for option in options)
        }:
            empty |= new
        first: dict[str, set[str]] = {name: set() for name in self.rules}
        for name, options in self.rules.items():
            for option in options:
                for item in option:
                    if isinstance(item, str):
                        first[name].add(item)
                    if not (isinstance(item, str) and item in empty):
                        break
        done: set[str] = set()

        def visit(name: str, above: tuple[str, ...]) -> None:
            assert name not in above, f"{name} begins with itself"
            if name not in done:
                for each in first[name]:
                    visit(each, (*above, name))
                done.add(name)

        for name in self.rules:
            visit(name, ())


def _times(mark: str) -> tuple[int, int | None]:
    least, comma, most = mark[1:-1].partition(",")
    return int(least), (int(most) if most else None) if comma else int(least)


class GbnfMatcher:
    """As `dovetail.grammar.matcher.Matcher`, for the tokens that a request allows beside a grammar: of the control
    tokens the grammar's own ones, and `ends`."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, ends: Iterable[int] = ()) -> None:
        ends = frozenset(ends)
        self._rules = _Parsed(
            grammar.gbnf(tokenizer.control, (literal for literal, token in tokenizer.control.items() if token in ends))
        ).rules
        self._tokenizer, self._ends = tokenizer, ends
        used = {tokenizer.control[literal] for literal in grammar.control_tokens()}
        self._banned = {*tokenizer.control.values()} - used - self._ends
        self._states: list[tuple[frozenset[Stack], bytes, bool]] = [(self._closure({("root", ())}), b"", False)]
        self._after = functools.lru_cache(10_000)(self._taken)

    def _closure(self, stacks: Iterable[Stack]) -> frozenset[Stack]:
        seen: set[Stack] = set()
        pending = list(stacks)
        while pending:
            stack = pending.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if stack and isinstance(stack[0], str):
                for option in self._rules[stack[0]]:
                    rest = stack[1]
                    for item in reversed(option):
                        rest = (item, rest)
                    pending.append(rest)
        return frozenset(stack for stack in seen if not stack or not isinstance(stack[0], str))

    def _taken(self, stacks: frozenset[Stack], character: str) -> frozenset[Stack]:
        code = ord(character)
        return self._closure(
            stack[1] for stack in stacks if stack and not isinstance(stack[0], int) and _matches(stack[0], code)
        )

    def _next(self, token: int) -> tuple[frozenset[Stack], bytes, bool] | None:
        stacks, partial, ended = self._states[-1]
        if ended or token in self._banned:
            return None
        if token in self._ends:
            return (stacks, partial, True) if () in stacks and not partial else None
        as_token = self._closure(stack[1] for stack in stacks if stack and stack[0] == token and type(stack[0]) is int)
        text, partial = _decoded(partial + self._bytes(token))
        if "\0" in text:
            return None
        for character in text:
            stacks = self._after(stacks, character)
            if not stacks:
                break
        if partial:  # as llama.cpp: some character with these first bytes
            stacks = frozenset(stack for stack in stacks if stack and _may_match(stack[0], partial))
        stacks |= as_token
        return (stacks, partial, False) if stacks else None

    def _bytes(self, token: int) -> bytes:
        """What llama.cpp reads a token as: a control token as the characters that it spells."""
        literal = self._tokenizer.control_literals.get(token)
        return self._tokenizer.token_bytes(token) if literal is None else literal.encode()

    def advance(self, token: int) -> bool:
        state = self._next(token)
        if state is not None:
            self._states.append(state)
        return state is not None

    def rollback(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def allowed(self) -> list[int]:
        return [token for token in range(self._tokenizer.vocab_size) if self._next(token) is not None]

    def fill(self, row: memoryview) -> None:
        row[:] = bytes(len(row))
        for token in self.allowed():
            row[token // 8] |= 1 << token % 8


def _matches(item: Item, code: int) -> bool:
    negated, ranges = item
    return any(low <= code <= high for low, high in ranges) != negated


def _may_match(item: Item, partial: bytes) -> bool:
    """Whether a terminal matches a character whose UTF-8 begins with these bytes."""
    if isinstance(item, int):
        return False
    size = 2 if partial[0] < 0xE0 else 3 if partial[0] < 0xF0 else 4
    value = partial[0] & (0x7F >> size)
    for byte in partial[1:]:
        value = value << 6 | byte & 0x3F
    missing = 6 * (size - len(partial))
    first, last = max(value << missing, {2: 0x80, 3: 0x800, 4: 0x10000}[size]), (value + 1 << missing) - 1
    negated, ranges = item
    if negated:
        return not any(low <= first and last <= high for low, high in ranges)
    return any(low <= last and first <= high for low, high in ranges)


def _decoded(data: bytes) -> tuple[str, bytes]:
    """The characters of the beginning, and the bytes of one that is not whole."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data), decoder.getstate()[0]
    except UnicodeDecodeError:
        return "\0", b""  # no grammar here allows this character


def accepts(matcher: GbnfMatcher, ids: Iterable[int]) -> bool:
    return all(map(matcher.advance, ids))
