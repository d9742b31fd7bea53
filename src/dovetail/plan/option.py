"""What is said of a setting where it is declared, and the command line's argument that follows from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

Group = Literal["what runs", "drafting", "engine", "machine", "serving"]
#: In the order in which people are shown them.
GROUPS: tuple[Group, ...] = get_args(Group)


class Option(msgspec.Struct, frozen=True):
    """One setting.

    `type` is what msgspec checks it against; where it may be None, that means "nothing" or "left to the engine", and
    is spelled `none`. `words` maps an engine to what it calls the setting: a flag (``--flag``, ``--flag.member`` for a
    member of a flag's JSON) or a key of its own file (``key.member``); an engine that is absent has no word for it.
    `gateway`: Dovetail sees to it itself, whichever engine completes. `path` says that relative ones start where they
    are written: a file, or a checkpoint, which may be a hub id instead. `common`: `--help` shows it; `--help-all`
    shows every option. `valid` raises for what no type can say.
    """

    name: str
    type: Any
    help: str
    group: Group
    words: Mapping[str, str] = {}
    gateway: bool = False
    metavar: str | None = None
    aliases: tuple[str, ...] = ()
    path: Literal["file", "checkpoint"] | None = None
    command_line: bool = True
    common: bool = False
    valid: Callable[[Any], object] | None = None

    @property
    def nullable(self) -> bool:
        return _matches(None, self.type)

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words it may be, `none` among them where it may be None; None if it is no matter of choice."""
        for kind in _kinds(self.type):
            if isinstance(kind, msgspec.inspect.LiteralType):
                return (*map(str, kind.values), *(("none",) if self.nullable else ()))
        return None

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is said on the command line, its own name first."""
        return tuple("--" + name.replace("_", "-") for name in (self.name, *self.aliases))

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Make it an argument of `parser`, under its own name."""
        kinds = _kinds(self.type)
        if any(isinstance(kind, msgspec.inspect.BoolType) for kind in kinds):
            # Every flag has its --no-: other names are for those who know them, and not for the help.
            for flag, help in zip(self.flags, (self.help, *[argparse.SUPPRESS] * len(self.aliases)), strict=True):
                parser.add_argument(flag, dest=self.name, action=argparse.BooleanOptionalAction, help=help)
            return
        number = next((n for k, n in _NUMBERS.items() if any(isinstance(kind, k) for kind in kinds)), None)
        convert = None if number is None else _or_none(number) if self.nullable else number
        choices = self.choices
        many = choices is not None and len(choices) > _FEW
        parser.add_argument(
            *self.flags,
            dest=self.name,
            type=convert or str,
            choices=choices,
            metavar=_METAVAR if many else None if choices else self.metavar,
            help=f"{self.help}; one of {', '.join(choices)}" if choices and many else self.help,
        )


_FEW, _METAVAR = 4, "NAME"  # more choices than that are listed in the help, and named so in the usage
_NUMBERS: dict[type, type] = {msgspec.inspect.IntType: int, msgspec.inspect.FloatType: float}


def _kinds(type_: Any) -> tuple[msgspec.inspect.Type, ...]:
    found = msgspec.inspect.type_info(type_)
    return found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)


def _matches(value: object, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def _or_none(number: type) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        return None if text == "none" else number(text)

    convert.__name__ = number.__name__  # argparse says "invalid int value"
    return convert
