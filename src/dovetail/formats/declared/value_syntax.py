"""`Syntax`: how a family writes JSON values, as grammar nodes. `value_grammar` writes a JSON Schema with it.

`members_of` reads a call's arguments, for families that write them in another syntax than JSON.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.errors import RenderError
from dovetail.events import Call
from dovetail.formats.answers import call_envelope
from dovetail.grammar import Choice, Concat, Maybe, Node, Regex, Repeat, RuleRef, numbers
from dovetail.tokens import Segment

INTEGER, NUMBER = Regex(numbers.INTEGER), Regex(numbers.NUMBER)
#: Any JSON value: a rule of `Syntax.anything`.
ANY = RuleRef("any")


class Keys(NamedTuple):
    """How the members of an object are written."""

    #: A member with a name, and a member with any name except some.
    member: Callable[[str, Node], Node]
    other: Callable[[list[str], Node], Node]


class Syntax(ABC):
    boolean: Node
    null: Node
    #: How members are written: in a call's arguments, and in other objects.
    arguments: Keys
    members: Keys
    #: Whether a string looks like another value if its text does.
    bare_strings = False
    #: Whether the grammar has the same name at both ends of a member, where there are two. It cannot repeat any name.
    repeats_names = True

    @abstractmethod
    def string(self, schema: Mapping[str, Any], origin: str, pointer: str) -> Node:
        """A string that is valid for a schema with at most `pattern`, `format`, `minLength` and `maxLength`.

        `origin` and `pointer` say where the schema is: see `JsonSchema`.
        """

    @abstractmethod
    def scalars(self, values: list[Any]) -> Node:
        """One of some values that are no arrays and no objects."""

    @abstractmethod
    def object(self, members: Node | None) -> Node:
        """An object with these members, or without any."""

    @abstractmethod
    def array(self, items: Node | None) -> Node:
        """An array of these items, or an empty one."""

    @abstractmethod
    def then(self, node: Node) -> Node:
        """What separates two members or items, and then `node`."""

    @abstractmethod
    def anything(self) -> dict[str, Node]:
        """The rules of `ANY`."""

    def item(self, value: Node) -> Node:
        """An item of an array."""
        return value

    def reads_back(self, name: str) -> bool:
        """Whether the reader reads back a member of this name."""
        return True

    def several(self, item: Node, least: int = 1, most: int | None = None) -> Node:
        """`least` to `most` times `item`, separated. `most` is at least one."""
        more = Repeat(self.then(item), max(least - 1, 0), None if most is None else most - 1)
        some: Node = item if most == 1 else Concat((item, more))
        return some if least else Maybe(some)

    def one_of(self, values: list[Any]) -> Node | None:
        """One of some JSON values; None if there are none."""
        containers = [value for value in values if isinstance(value, list | Mapping)]
        scalars = [value for value in values if not isinstance(value, list | Mapping)]
        return choice([*([self.scalars(scalars)] if scalars else []), *map(self._constant, containers)])

    def _constant(self, value: Any) -> Node:
        """This list or object."""
        if isinstance(value, Mapping):
            return self.object(self._joined(self.members.member(key, self._just(it)) for key, it in value.items()))
        return self.array(self._joined(self.item(self._just(it)) for it in value))

    def _just(self, value: Any) -> Node:
        node = self.one_of([value])
        assert node is not None
        return node

    def _joined(self, items: Iterable[Node]) -> Node | None:
        joined = [self.then(item) if i else item for i, item in enumerate(items)]
        return Concat(tuple(joined)) if joined else None


def choice(options: list[Node | None]) -> Node | None:
    """One of `options`, of which some may be None (impossible); None if all are."""
    possible = tuple(option for option in options if option is not None)
    return Choice(possible) if len(possible) > 1 else possible[0] if possible else None


class Members(list[tuple[str, Any]]):
    """The members of a JSON object."""


class Number(NamedTuple):
    """A JSON number, as it is written."""

    digits: str


def members_of(
    call: Call, write: Callable[[Any, tuple[str, ...]], Iterator[Segment]], controls: tuple[str, ...]
) -> Iterator[Segment]:
    """A call's arguments as `write` writes them; the placeholder of `call_envelope` as it is.

    Raises `RenderError` if the arguments are not a JSON object.
    """
    if call.arguments == call_envelope.ARGUMENTS:
        return iter([Segment(call.arguments, False)])
    try:
        value = json.loads(call.arguments, parse_int=Number, parse_float=Number, object_pairs_hook=Members)
        if not isinstance(value, Members):
            raise ValueError
        return iter([*write(value, controls)])
    except (ValueError, RecursionError):
        raise RenderError(f"the arguments of {call.name} are not a JSON object") from None
