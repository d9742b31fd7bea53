"""`NestedTagCalls`: the declaration of calls whose parameters are tags of their own names, one inside the other."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.events import Call
from dovetail.formats.answers.parameter_grammar import Markup
from dovetail.formats.declared.declaration_checks import check_slots
from dovetail.formats.declared.declared import Declaration, Mark, filled, markup
from dovetail.formats.declared.value_syntax import ANY, Keys, Members, Number, Syntax, members_of
from dovetail.grammar import Choice, Concat, ExactText, FreeText, Node, OtherName, Regex, Repeat
from dovetail.grammar.nodes import TextUntil
from dovetail.reading import CallReader
from dovetail.reading.older_tags import OlderTagReader
from dovetail.tokens import Segment

_PLAIN = re.compile(r"[^\s<>/]+")
_NOTHING = Concat(())
#: What models write for the name of a section's tag.
_OTHER_SECTIONS = ("tool_calls", "toolcall", "function_calls", "function_call")


@dataclass(frozen=True)
class NestedTagCalls(Declaration):
    """Calls whose parameters are tags named after their keys: an object has a tag for each member, an array for each
    item.

    `section`, `between`, `after_content`: see `JsonCalls`.
    `call`: one call, with the slots `{name}` and `{parameters}`.
    `mark`: the control token in front of each tag.
    `older`: a section with one call and one parameter, as earlier models of the family write them. It is read, too.
    `item`: the name of the tag of an item.
    """

    section: str
    call: str
    mark: str
    older: str
    item: str = "item"
    between: str = ""
    after_content: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots("call", self.call, {"name", "parameters"})

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        return filled(self.call, controls, name=call.name, parameters=members_of(call, self._value, controls))

    def _value(self, value: Any, controls: tuple[str, ...]) -> Iterator[Segment]:
        match value:
            case Members() | list():
                for item in value:
                    name, inner = item if isinstance(value, Members) else (self.item, item)
                    yield from (*markup(self.mark, controls), Segment(f"<{name}>", False))
                    yield from self._value(inner, controls)
                    yield from (*markup(self.mark, controls), Segment(f"</{name}>", False))
            case str():
                yield Segment(value, False)
            case Number():
                yield Segment(value.digits, False)
            case _:
                yield Segment(json.dumps(value), False)

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        before, end = map(str.strip, self.section.split("{calls}"))
        opener = (self.after_content + before).strip(" ")
        call = self.call.partition("name=")[0].removeprefix(self.mark)
        unbracketed = self.mark + before.removeprefix(self.mark + "<")
        others = tuple(f"{self.mark}<{name}>" for name in _OTHER_SECTIONS)
        older, _, parameter, parameter_end, _, older_end = re.findall("<[^<>]*>", self.older)
        return OlderTagReader, {
            "section": opener.lstrip("\n"),
            "section_end": end.removeprefix(self.mark),
            "unbracketed": unbracketed,
            "openers": (opener, unbracketed, *others, self.mark + call, self.mark + call[1:], older),
            "other_sections_begin": others,
            "other_sections_end": tuple(f"</{name}>" for name in _OTHER_SECTIONS),
            "text_openers": (older,),
            "unopened": (self.call.partition("{name}")[0].removeprefix(self.mark) + '{name}"',),
            "older_section": older,
            "older_section_end": older_end,
            "older_parameter": parameter.partition("name=")[0],
            "older_parameter_end": parameter_end,
            "mark": self.mark,
            "inner": (end,),
            "call": call,
            "call_end": self.call.rpartition(self.mark)[2].strip(),
            "item": self.item,
        }

    def syntax(self, mark: Mark) -> Syntax:
        own_names = tuple(re.findall(r"<(\w+)", self.section + self.call))
        return NestedTagSyntax(mark(self.mark), self.item, own_names)

    def input_markup(self, mark: Mark) -> Markup:
        before, between = (mark(self.mark), ExactText("<")), {"string": (ExactText(">"),)}
        after = (mark(self.mark), ExactText("</input>"))
        return Markup((), (), before, between, after, (), lambda name: name, lambda _: True)


@dataclass(frozen=True)
class NestedTagSyntax(Syntax):
    """`mark`: what is in front of each tag. `item_name`: the name of an item's tag. `own_names`: other tags' names.

    A grammar cannot repeat the name of an undeclared member at the end of its tag: any name may stand there.
    """

    mark: Node
    item_name: str
    own_names: tuple[str, ...]

    boolean, null = Regex("true|false"), ExactText("null")
    bare_strings, repeats_names = True, False

    @functools.cached_property
    def arguments(self) -> Keys:  # type: ignore[override]
        return Keys(self._tagged, self._undeclared)

    @functools.cached_property
    def members(self) -> Keys:  # type: ignore[override]
        return Keys(self._tagged, self._undeclared)

    def _tagged(self, name: str, value: Node) -> Node:
        return Concat((self.mark, ExactText(f"<{name}>"), value, self.mark, ExactText(f"</{name}>")))

    def _undeclared(self, names: list[str], value: Node) -> Node:
        name = OtherName((*names, *self.own_names))
        end = (self.mark, ExactText("</"), OtherName(self.own_names), ExactText(">"))
        return Concat((self.mark, ExactText("<"), name, ExactText(">"), value, *end))

    def string(self, schema: Mapping[str, Any], origin: str, pointer: str) -> Node:
        return TextUntil("", (), schema, origin, pointer) if schema else FreeText()

    def scalars(self, values: list[Any]) -> Node:
        words = [ExactText(it if isinstance(it, str) else json.dumps(it)) if it != "" else _NOTHING for it in values]
        return Choice(tuple(words)) if len(words) > 1 else words[0]

    def object(self, members: Node | None) -> Node:
        return members or _NOTHING

    def array(self, items: Node | None) -> Node:
        return items or _NOTHING

    def then(self, node: Node) -> Node:
        return node

    def item(self, value: Node) -> Node:
        return self._tagged(self.item_name, value)

    def anything(self) -> dict[str, Node]:
        return {"any": Choice((FreeText(), Repeat(self.item(ANY)), Repeat(self._undeclared([], ANY))))}

    def reads_back(self, name: str) -> bool:
        return _PLAIN.fullmatch(name) is not None
