"""The declaration of one setting, and the command-line argument that follows from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

Group = Literal["what runs", "drafting", "engine", "machine", "serving"]
#: In the order in which help and plans show them.
GROUPS: tuple[Group, ...] = get_args(Group)
_MAX_LISTED = 4  # an option with more choices lists them in its help text, not in the usage line
_NUMBERS: dict[type, type] = {msgspec.inspect.IntType: int, msgspec.inspect.FloatType: float}


class Option(msgspec.Struct, frozen=True):
    """One setting: its name, its type, and how people and engines write it.

    `type`: the type that msgspec checks values against. If it allows None, None means that the setting is unset: the
    engine decides, or there is no such thing. People write `unset_word` for None; the word "none" is always read too.
    `engine_names`: engine -> its name for the setting. A name is a flag (``--flag``), a member of a flag's JSON
    (``--flag.member``) or a key of the engine's own file (``key.member``). An absent engine has no such setting.
    `gateway`: Dovetail's gateway implements the setting, whichever engine completes.
    `path`: the value is a path, relative to the file (or to the folder) in which it is written. A "checkpoint" may be a
    hub id instead.
    `command_line`: the setting has a flag. `common`: `--help` shows it; `--help-all` shows every option.
    `repeats`: the flag may be given several times; commas join the values.
    `of_server`: the setting is the server's, and the same for all models behind it.
    `validate`: raises `DovetailError` for values that the type cannot exclude.
    """

    name: str
    type: Any
    help: str
    engine_names: Mapping[str, str] = {}
    group: Group = "serving"
    gateway: bool = False
    metavar: str | None = None
    aliases: tuple[str, ...] = ()
    path: Literal["file", "checkpoint"] | None = None
    unset_word: str = "unset"
    command_line: bool = True
    common: bool = False
    repeats: bool = False
    of_server: bool = False
    validate: Callable[[Any], object] | None = None

    @property
    def nullable(self) -> bool:
        return any(isinstance(kind, msgspec.inspect.NoneType) for kind in _kinds(self.type))

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words that the setting may be, with `unset_word` if it may be None; None if the values are open."""
        for kind in _kinds(self.type):
            if isinstance(kind, msgspec.inspect.LiteralType):
                return (*map(str, kind.values), *((self.unset_word,) if self.nullable else ()))
        return None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the setting on the command line, its own name first."""
        return tuple("--" + name.replace("_", "-") for name in (self.name, *self.aliases))

    def is_unset(self, value: object) -> bool:
        """Whether `value` is one of the words for None."""
        return self.nullable and value in ("none", self.unset_word)

    def add_to(self, parser: argparse._ActionsContainer, *, in_help: bool = True) -> None:
        """Add the setting to `parser` as an argument named `name`, which the help shows if `in_help`."""
        kinds = _kinds(self.type)
        if any(isinstance(kind, msgspec.inspect.BoolType) for kind in kinds):
            # Every flag has a --no- flag too, so the help shows the setting under its own name only.
            for i, flag in enumerate(self.flags):
                help = self.help if in_help and i == 0 else argparse.SUPPRESS
                parser.add_argument(flag, dest=self.name, action=argparse.BooleanOptionalAction, help=help)
            return
        number = next((n for k, n in _NUMBERS.items() if any(isinstance(kind, k) for kind in kinds)), None)
        choices = self.choices
        listed_in_help = choices is not None and len(choices) > _MAX_LISTED
        metavar = self.metavar or ("NAME" if number is None else "N")
        help = f"{self.help}; one of {', '.join(choices)}" if choices and listed_in_help else self.help
        parser.add_argument(
            *self.flags,
            dest=self.name,
            action=_Joined if self.repeats else "store",
            type=self._converter(number or str),
            choices=choices,
            metavar=None if choices and not listed_in_help else metavar,
            help=help if in_help else argparse.SUPPRESS,
        )

    def _converter(self, number: type) -> Callable[[str], Any]:
        def convert(text: str) -> Any:
            return self.unset_word if self.is_unset(text) else number(text)

        convert.__name__ = number.__name__  # argparse prints it: "invalid int value"
        return convert


class _Joined(argparse.Action):
    """Joins the values of a flag that is given several times with commas."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        earlier = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{earlier},{values}" if earlier else values)


def _kinds(type_: Any) -> tuple[msgspec.inspect.Type, ...]:
    info = msgspec.inspect.type_info(type_)
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
