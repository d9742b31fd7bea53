"""Random grammars in Lark's notation, and random texts of them: made together, without any code of ours."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import lark

#: The characters of the texts: what needs escapes in a string, what may begin a tag, and letters of several bytes.
ALPHABET = 'ab"\\\n\t</é🙂1'
#: A part of a grammar: how it is written, and how a text of it is drawn.
Part = tuple[str, Callable[[random.Random, int], str]]


def string(text: str) -> str:
    """A string in Lark's notation."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _word(rng: random.Random) -> Part:
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 3)))
    return string(text), lambda *_: text


def _in_class(characters: str) -> str:
    return "".join({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "/": "\\/"}.get(c, c) for c in characters)


def _regex(rng: random.Random, *, negated: bool = True) -> Part:
    members = "".join(sorted(set(rng.choices(ALPHABET, k=rng.randint(1, 4)))))
    negated = negated and rng.random() < 0.3
    pool = [c for c in ALPHABET if (c in members) != negated]
    least, most, times = rng.choice([(1, 1, ""), (1, 4, "+"), (1, 3, "{1,3}"), (2, 2, "{2}")])

    def draw(rng: random.Random, _: int) -> str:
        return "".join(rng.choice(pool) for _ in range(rng.randint(least, most)))

    return f"/[{'^' * negated}{_in_class(members)}]{times}/", draw


def _operated(part: Part, rng: random.Random) -> Part:
    written, draw = part
    least, most, operator = rng.choice([(0, 1, "?"), (0, 3, "*"), (1, 3, "+"), (1, 2, "~1..2"), (2, 2, "~2")])

    def drawn(rng: random.Random, depth: int) -> str:
        return "".join(draw(rng, depth) for _ in range(rng.randint(least, most)))

    return f"({written}){operator}", drawn


def _either(parts: list[Part], rng: random.Random) -> Part:
    def draw(rng: random.Random, depth: int) -> str:
        return rng.choice(parts)[1](rng, depth)

    written = " | ".join(each for each, _ in parts)
    return f"({written})", draw


def _sequence(parts: list[Part]) -> Part:
    def draw(rng: random.Random, depth: int) -> str:
        return "".join(each(rng, depth) for _, each in parts)

    return " ".join(written for written, _ in parts), draw


def _part(rng: random.Random, depth: int, named: list[Part], *, negated: bool = True) -> Part:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return _word(rng) if rng.random() < 0.5 else _regex(rng, negated=negated)
    if kind < 0.45 and named:
        return rng.choice(named)
    parts = [_part(rng, depth - 1, named, negated=negated) for _ in range(rng.randint(1, 3))]
    if kind < 0.65:
        return _either(parts, rng)
    if kind < 0.8:
        return _operated(_sequence(parts), rng)
    return _sequence(parts)


def regular(rng: random.Random) -> tuple[str, Callable[[random.Random], str]]:
    """A grammar without recursion, and what draws a text of it."""
    named: list[Part] = []
    lines: list[str] = []
    for i in range(rng.randint(0, 2)):
        word, pattern = _word(rng), _regex(rng)
        written, draw = rng.choice([word, pattern, _sequence([word, pattern])])
        lines.append(f"T{i}: {written}")
        named.append((f"T{i}", draw))
    for i in range(rng.randint(0, 2)):
        written, draw = _part(rng, 2, named)
        lines.append(f"{rng.choice(['', '?'])}r{i}: {written}{rng.choice(['', ' -> alias'])}")
        named.append((f"r{i}", draw))
    written, draw = _part(rng, 2, named)
    # The texts of a grammar that allows only the empty text, or is all optional, show little.
    first = _word(rng)
    lines.append(f"start: {first[0]} {written}")
    return "\n".join(lines) + "\n", lambda rng: first[1](rng, 0) + draw(rng, 0)


def nested(rng: random.Random) -> tuple[str, Callable[[random.Random], str]]:
    """A grammar with brackets in brackets, and what draws a text of it.

    No terminal can go on where another one begins, because brackets and separators are in no other text.
    """
    return _nested(rng, _part(rng, 1, [], negated=False), (", ", lambda *_: ","), apart=True)


def tangled(rng: random.Random) -> tuple[str, Callable[[random.Random], str]]:
    """As `nested`, with terminals that may go on where another one begins."""
    separator = _word(rng)
    return _nested(rng, _part(rng, 1, []), (f"{separator[0]} ", separator[1]), apart=False)


def _nested(
    rng: random.Random, leaf: Part, separator: Part, *, apart: bool
) -> tuple[str, Callable[[random.Random], str]]:
    opening, closing = rng.sample(["(", ")", "[[", "]", "{", "}}"], 2)
    before = "#" if apart or rng.random() < 0.5 else ""
    least, most, operator = rng.choice([(0, 1, "?"), (0, 3, "*"), (1, 3, "+"), (1, 2, "~1..2"), (2, 2, "~2")])
    separated = rng.random() < 0.5

    def draw(rng: random.Random, depth: int) -> str:
        if depth > 3 or rng.random() < 0.4:
            return leaf[1](rng, depth)
        items = [before + draw(rng, depth + 1) for _ in range(rng.randint(least, most))]
        between = separator[1](rng, depth) if separated else ""
        return opening + "".join(item + between for item in items) + closing

    item = f"{string(before)} item" if before else "item"
    written = separator[0] if separator[0] != ", " else '"," '
    body = f"({item} {written if separated else ''}){operator}"
    text = f"start: item\nitem: {leaf[0]} | {string(opening)} {body} {string(closing)}\n"
    return text, lambda rng: draw(rng, 0)


@functools.lru_cache(64)
def oracle(grammar: str) -> lark.Lark:
    return lark.Lark(grammar, parser="earley", lexer="dynamic_complete")


def is_member(grammar: str, text: str) -> bool:
    """Whether Lark itself parses the text."""
    parser = oracle(grammar)
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def mutated(text: str, rng: random.Random, more: str = "") -> str:
    """The text with one character left out, put in or replaced."""
    at = rng.randint(0, len(text))
    new = rng.choice(["", rng.choice(ALPHABET + more)])
    return text[:at] + new + text[at + rng.randint(0, 1) :]
