"""Reads a grammar in Lark's notation: rules and terminals as expressions.

Supported: rules, terminals, aliases, priorities (which choose between parse trees, and change no language), EBNF
operators, repetitions (`~2..4`, and llguidance's `{2,4}`), ranges, `%import common.NAME` and `%ignore`. Templates,
`%declare`, `%extend`, `%override` and other imports are refused. Source: Lark's grammar reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import msgspec

from dovetail.grammar.inputs import regex_text
from dovetail.grammar.inputs.charsets import Chars, normal
from dovetail.grammar.inputs.expressions import Expression, Ref, either, sequence, text, times
from dovetail.grammar.inputs.regex_text import RegexError

_MOST_DEFINITIONS = 500
_MOST_TIMES = 10_000
_DEEPEST = 50
#: What stands between any two terminals; the texts that are to be ignored.
IGNORED = "%ignore"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\f]+|\\\r?\n|//[^\n]*|\#[^\n]*|(?P<newline>\r?\n))
    |(?P<regex>/(?![/*])(?:\\.|[^\\/\n])+/(?P<flags>[a-z]*))
    |(?P<string>"(?:\\.|[^"\\\n])*"(?P<case>i?))
    |(?P<directive>%[a-z]+)
    |(?P<terminal>_?[A-Z][A-Z0-9_]*(?![a-z]))
    |(?P<rule>[!?]{0,2}(?P<name>_{0,2}[a-z][a-z0-9_]*))
    |(?P<times>\{[ ]*[0-9]{0,9}[ ]*(?:,[ ]*[0-9]{0,9}[ ]*)?\})
    |(?P<number>-?[0-9]{1,9})
    |(?P<operator>->|\.\.|[:|()\[\]{}*+?~.,])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class LarkError(ValueError):
    """The text is no grammar in Lark's notation, or uses what is not supported."""


class Token(NamedTuple):
    kind: str
    text: str
    line: int


class Definitions(msgspec.Struct, frozen=True):
    """The rules and the terminals of a grammar by name, and what may stand between terminals."""

    rules: dict[str, Expression]
    terminals: dict[str, Expression]
    ignored: tuple[Expression, ...]


def parse(grammar: str) -> Definitions:
    """The definitions in a grammar. Raises `LarkError`, which names the line."""
    return _Parser(_tokens(grammar)).definitions()


def _tokens(grammar: str) -> list[Token]:
    tokens: list[Token] = []
    at, line = 0, 1
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise LarkError(f"line {line}: {grammar[at : at + 40].splitlines()[0]!r} is not Lark")
        at = match.end()
        kind = next(kind for kind in ("space", *_KINDS) if match[kind] is not None)
        if kind != "space":
            tokens.append(Token(kind, match["name"] if kind == "rule" else match.group(), line))
        line += match.group().count("\n")
    return [*tokens, Token("end", "", line)]


_KINDS = ("regex", "string", "directive", "terminal", "rule", "times", "number", "operator")


class _Parser:
    """Reads statements. A statement ends where the next one begins, so new lines do not matter."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._in_terminal = False
        self._rules: dict[str, Expression] = {}
        self._terminals: dict[str, Expression] = {}
        self._ignored: list[Expression] = []

    def definitions(self) -> Definitions:
        while self._token.kind != "end":
            self._statement()
            if len(self._rules) + len(self._terminals) > _MOST_DEFINITIONS:
                self._refuse(f"there are more than {_MOST_DEFINITIONS} rules and terminals")
        return Definitions(self._rules, self._terminals, tuple(self._ignored))

    # -- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _refuse(self, complaint: str) -> NoReturn:
        raise LarkError(f"line {self._token.line}: {complaint}")

    def _take(self, kind: str, words: str) -> str:
        if self._token.kind != kind:
            shown = self._token.text[:40]
            self._refuse(f"{words} is missing before {shown!r}" if shown else f"{words} is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1].text

    def _next(self, operator: str) -> bool:
        if self._token.kind != "operator" or self._token.text != operator:
            return False
        self._at += 1
        return True

    def _expect(self, operator: str) -> None:
        if not self._next(operator):
            self._take(operator, repr(operator))

    def _begins_statement(self) -> bool:
        if self._token.kind not in ("rule", "terminal"):
            return self._token.kind in ("directive", "end")
        after = self._tokens[self._at + 1]
        if (after.kind, after.text) == ("operator", "."):
            after = self._tokens[min(self._at + 3, len(self._tokens) - 1)]
        return (after.kind, after.text) in (("operator", ":"), ("operator", "{"))

    # -- statements ---------------------------------------------------------------------------------------------------

    def _statement(self) -> None:
        kind, name, _ = self._token
        if kind == "directive":
            self._at += 1
            self._directive(name)
        elif kind in ("rule", "terminal"):
            self._at += 1
            self._definition(name, self._terminals if kind == "terminal" else self._rules)
        else:
            self._take("rule", "the name of a rule or a terminal")

    def _definition(self, name: str, definitions: dict[str, Expression]) -> None:
        if self._next("{"):
            self._refuse(f"{name} is a template, which is not supported")
        if self._next("."):
            self._take("number", "a priority")
        self._expect(":")
        if name in definitions:
            self._refuse(f"{name} is defined twice")
        self._in_terminal = definitions is self._terminals
        definitions[name] = self._alternatives(0)
        if not self._begins_statement():
            self._refuse(f"{self._token.text[:40]!r} is not expected here")

    def _directive(self, name: str) -> None:
        if name == "%ignore":
            self._in_terminal = True
            self._ignored.append(self._alternatives(0))
        elif name == "%import":
            self._import()
        else:
            self._refuse(f"{name} is not supported")

    def _import(self) -> None:
        if self._next(".") or self._take("rule", "a library") != "common":
            self._refuse("only terminals of the library `common` can be imported")
        if self._next("("):
            self._imported(self._take("terminal", "a terminal"))
            while self._next(","):
                self._imported(self._take("terminal", "a terminal"))
            self._expect(")")
            return
        self._expect(".")
        name = self._take("terminal", "a terminal")
        self._imported(name, self._take("terminal", "a terminal") if self._next("->") else name)

    def _imported(self, name: str, alias: str = "") -> None:
        if name not in _COMMON:
            self._refuse(f"the library `common` has no {name}")
        if alias in self._terminals or (name in self._terminals and not alias):
            self._refuse(f"{alias or name} is defined twice")
        self._terminals[alias or name] = regex_text.parse(_COMMON[name])

    # -- expressions --------------------------------------------------------------------------------------------------

    def _alternatives(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            self._refuse(f"brackets are nested more than {_DEEPEST} deep")
        options = [self._items(depth)]
        while self._next("|"):
            options.append(self._items(depth))
        return either(options)

    def _items(self, depth: int) -> Expression:
        items = list(self._listed(depth))
        if self._next("->"):
            self._take("rule", "an alias")
        return sequence(items)

    def _listed(self, depth: int) -> Iterator[Expression]:
        while not self._begins_statement() and (self._token.kind != "operator" or self._token.text in "(["):
            yield self._repeated(self._atom(depth))

    def _atom(self, depth: int) -> Expression:
        kind, written, _ = self._token
        self._at += 1
        match kind:
            case "operator":
                inner = self._alternatives(depth + 1)
                self._expect(")" if written == "(" else "]")
                return inner if written == "(" else times(inner, 0, 1)
            case "rule":
                if self._in_terminal:
                    self._refuse(f"a terminal cannot refer to the rule {written}")
                return Ref(written)
            case "terminal":
                return self._lexeme(Ref(written))
            case "string":
                return self._lexeme(self._guarded(lambda: self._range(written) or _string(written)))
            case "regex":
                return self._lexeme(self._guarded(lambda: _regex(written)))
        self._at -= 1
        self._refuse(f"{written[:40]!r} is not expected here")

    def _lexeme(self, expression: Expression) -> Expression:
        """A terminal, and in a rule what may be ignored after it."""
        return expression if self._in_terminal else sequence((expression, Ref(IGNORED)))

    def _guarded(self, read: Callable[[], Expression]) -> Expression:
        try:
            return read()
        except RegexError as error:
            self._refuse(str(error))

    def _range(self, first: str) -> Expression | None:
        if not self._next(".."):
            return None
        ends = [_unescaped(end) for end in (first, self._take("string", "the end of the range"))]
        if [len(end) for end in ends] != [1, 1] or ends[0] > ends[1]:
            self._refuse("a range is not from one character to a later one")
        return Chars(normal([(ord(ends[0]), ord(ends[1]))]))

    def _repeated(self, item: Expression) -> Expression:
        for operator, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._next(operator):
                return times(item, least, most)
        if self._next("~"):
            low = int(self._take("number", "a number of repetitions"))
            high: int | None = int(self._take("number", "a number of repetitions")) if self._next("..") else low
        elif self._token.kind == "times":
            numbers = self._token.text.strip("{} ").split(",")
            self._at += 1
            low, high = int(numbers[0].strip() or 0), int(numbers[-1].strip()) if numbers[-1].strip() else None
        else:
            return item
        if low < 0 or max(low, high or 0) > _MOST_TIMES or (high is not None and high < low):
            self._refuse(f"repetitions are from 0 to {_MOST_TIMES}, the smaller number first")
        return times(item, low, high)


def _regex(written: str) -> Expression:
    pattern, _, flags = written[1:].rpartition("/")
    return regex_text.parse(pattern.replace("\\/", "/"), flags)


def _string(written: str) -> Expression:
    characters = _unescaped(written)
    if not written.endswith("i"):
        return text(characters)
    return sequence(Chars.of(character).in_both_cases() for character in characters)


def _unescaped(written: str) -> str:
    """The characters of a string. As in Lark, a backslash before any other letter is a character of its own."""

    def character(escape: re.Match[str]) -> str:
        if escape[4] is not None:
            return _CONTROL.get(escape[4]) or (escape[4] if escape[4] in '\\"' else escape.group())
        code = int(escape[1] or escape[2] or escape[3], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise RegexError(f"no character has the code of {escape.group()}")
        return chr(code)

    return _ESCAPE.sub(character, written[1 : written.rindex('"')])


_INT = "[0-9]+"
_FLOAT = f"(?:{_INT}[eE][+-]?{_INT}|(?:{_INT}\\.(?:{_INT})?|\\.{_INT})(?:[eE][+-]?{_INT})?)"
#: The terminals of Lark's library, as regexes. A comment in C does not contain its end.
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": f"{_INT}\\.(?:{_INT})?|\\.{_INT}",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"{_FLOAT}|{_INT}",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INT})",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
