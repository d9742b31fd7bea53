"""`BareKeyCalls`: the declaration of calls whose arguments have bare keys, and markers in place of quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.events import Call
from dovetail.formats.answers.parameter_grammar import Markup
from dovetail.formats.declared.declaration_checks import check_slots
from dovetail.formats.declared.declared import Declaration, Mark, filled
from dovetail.formats.declared.value_syntax import ANY, NUMBER, Keys, Members, Number, Syntax, members_of
from dovetail.grammar import Choice, Concat, ExactText, FreeText, Maybe, Node, OtherName, Regex, RuleRef
from dovetail.grammar.nodes import TextUntil
from dovetail.reading import CallReader
from dovetail.reading.bare_keys import BareKeyReader
from dovetail.tokens import Segment

_PLAIN = re.compile(r"[^\s,:{}\[\]\"<>|]+")


@dataclass(frozen=True)
class BareKeyCalls(Declaration):
    """Calls such as `call:search{query:<|"|>words<|"|>,limit:3}`, each in a section of its own.

    `section`, `between`, `after_content`: see `JsonCalls`.
    `call`: one call, with the slots `{name}` and `{arguments}`. The arguments are in curly brackets.
    `string`: a string, with the slot `{text}`. The text has no escapes.
    """

    section: str
    call: str
    string: str
    between: str = ""
    after_content: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots("call", self.call, {"name", "arguments"})
        check_slots("string", self.string, {"text"})

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        return filled(self.call, controls, name=call.name, arguments=members_of(call, self._value, controls))

    def _value(self, value: Any, controls: tuple[str, ...]) -> Iterator[Segment]:
        match value:
            case Number():
                yield Segment(value.digits, False)
            case str():
                yield from filled(self.string, controls, text=value)
            case Members() | list():
                opening, closing = "{}" if isinstance(value, Members) else "[]"
                yield Segment(opening, False)
                for i, item in enumerate(value):
                    name, inner = item if isinstance(value, Members) else ("", item)
                    yield Segment("," * bool(i) + (f"{name}:" if isinstance(value, Members) else ""), False)
                    yield from self._value(inner, controls)
                yield Segment(closing, False)
            case _:
                yield Segment(json.dumps(value), False)

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        opener, end = self._around
        string, string_end = self.string.split("{text}")
        opener_mark = opener.lstrip("\n")
        openers = _spellings(opener_mark, "", "|")
        ends = (*_spellings(end, "", "|", "/", "|/", "/|"), *_spellings(opener_mark, "", "|", "/", "|/", "/|"))
        before_name = self.call.partition("{")[0]
        return BareKeyReader, {
            "section": opener_mark,
            "section_end": end,
            "openers": (opener,),
            "other_openers": tuple(mark for mark in openers if mark not in controls),
            "other_ends": tuple(dict.fromkeys(mark for mark in ends if mark not in controls)),
            "unopened": (before_name + "{name}{",),
            "inner": (end, string, string_end),
            "before_name": before_name,
            "string": string,
            "string_end": string_end,
        }

    def syntax(self, mark: Mark) -> Syntax:
        return BareKeySyntax(*map(mark, self.string.split("{text}")))

    def input_markup(self, mark: Mark) -> Markup:
        opening, closing = map(mark, self.string.split("{text}"))
        before, between = (ExactText("{"),), {"string": (ExactText(":"), opening)}
        stops = (closing.text,) if isinstance(closing, ExactText) else ()
        after = (closing, ExactText("}"))
        return Markup(before, before, (), between, after, stops, lambda name: name, lambda _: True)


def _spellings(marker: str, *before: str) -> tuple[str, ...]:
    """A marker in other spellings: with one of `before` in front of its words, or without the first of these."""
    word = marker.strip("<|>")
    words = dict.fromkeys((word, word.removeprefix("start_").removeprefix("end_")))
    return tuple(f"<{each}{word}{after}>" for word in words for each in before for after in ("", "|"))


def _member(name: str, value: Node) -> Node:
    return Concat((ExactText(f"{name}:"), value))


def _other(names: list[str], value: Node) -> Node:
    return Concat((OtherName(tuple(names)), ExactText(":"), value))


@dataclass(frozen=True)
class BareKeySyntax(Syntax):
    """`opening`, `closing`: what is around a string."""

    opening: Node
    closing: Node

    boolean, null = Regex("true|false"), ExactText("null")
    arguments, members = Keys(_member, _other), Keys(_member, _other)

    def string(self, schema: Mapping[str, Any], origin: str, pointer: str) -> Node:
        if isinstance(self.closing, ExactText):
            end = self.closing.text
            return Concat((self.opening, TextUntil(end, (end,), schema, origin, pointer)))
        text = TextUntil("", (), schema, origin, pointer) if schema else FreeText()
        return Concat((self.opening, text, self.closing))

    def scalars(self, values: list[Any]) -> Node:
        texts = [self._text(it) if isinstance(it, str) else ExactText(json.dumps(it)) for it in values]
        return Choice(tuple(texts)) if len(texts) > 1 else texts[0]

    def _text(self, text: str) -> Node:
        return Concat((self.opening, *([ExactText(text)] if text else []), self.closing))

    def object(self, members: Node | None) -> Node:
        return _bracketed("{", members, "}")

    def array(self, items: Node | None) -> Node:
        return _bracketed("[", items, "]")

    def then(self, node: Node) -> Node:
        return Concat((ExactText(","), node))

    def anything(self) -> dict[str, Node]:
        string = self.string({}, "", "#")
        return {
            "any": Choice((string, NUMBER, self.boolean, self.null, RuleRef("list"), RuleRef("dict"))),
            "list": self.array(Maybe(self.several(ANY))),
            "dict": self.object(Maybe(self.several(_other([], ANY)))),
        }

    def reads_back(self, name: str) -> bool:
        return _PLAIN.fullmatch(name) is not None


def _bracketed(opening: str, inside: Node | None, closing: str) -> Node:
    items = (ExactText(opening), inside, ExactText(closing))
    return Concat(tuple(item for item in items if item is not None))
