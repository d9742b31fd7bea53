"""A command that can be pasted into a shell, and the list of a plan's settings that it does not contain yet."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.plan.layers import Setting
from dovetail.plan.options import BY_NAME

if TYPE_CHECKING:
    from dovetail.formats.base import EngineParsers


class ShellText(str):
    """Text that the shell must expand, so that it is not quoted."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program with its arguments, environment variables and files.

    `start`: the program and its first words. `arguments`: each is a flag with its values. `variables`: the environment
    variables. `files`: name -> content of the files to write before the program starts. `notes`: what a reader must
    know, above all which settings of the plan the command does not contain.
    """

    start: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The words that the program gets, before the shell expands any `ShellText`."""
        return [*self.start, *(word for argument in self.arguments for word in _joined(argument))]

    def script(self) -> str:
        """The command as lines for a POSIX shell, after the notes as comments."""
        lines = [line for note in self.notes for line in comment(note)]
        for name, content in self.files.items():
            lines += [f"cat >{shlex.quote(name)} <<'END'", *content.rstrip("\n").split("\n"), "END"]
        words = [f"{name}={_quoted(value)}" for name, value in self.variables.items()]
        words += [" ".join(map(_quoted, part)) for part in (self.start, *map(_joined, self.arguments))]
        return "\n".join([*lines, " \\\n  ".join(words)]) + "\n"


def _joined(argument: tuple[str, ...]) -> tuple[str, ...]:
    """``--flag=value`` as one word if the value starts with a hyphen, or could after expansion: parsers want a flag."""
    if len(argument) != 2 or not (isinstance(argument[1], ShellText) or argument[1].startswith("-")):
        return argument
    joined = "=".join(argument)
    return (ShellText(joined) if isinstance(argument[1], ShellText) else joined,)


def _quoted(text: str) -> str:
    return text if isinstance(text, ShellText) else shlex.quote(text)


def comment(note: str) -> list[str]:
    """A note as lines of a comment."""
    # A long line is wrapped; no character of the note can end the comment or control the terminal.
    return textwrap.wrap(
        printable(" ".join(note.split())),
        width=100,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str) -> str:
    """`text` with U+FFFD in place of characters that are unsafe in YAML or on a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


class Remaining:
    """The settings of a plan that a command for `engine` does not contain yet, and notes on those it cannot contain.

    A setting that is None is left to the engine and is not counted.
    """

    def __init__(self, plan: Mapping[str, Setting[Any]], engine: str) -> None:
        self._values = {name: setting.value for name, setting in plan.items() if setting.value is not None}
        self._engine = engine
        self.notes: list[str] = []
        self._values.pop("engine", None)  # the command is for another engine on purpose

    def take(self, name: str) -> Any:
        """The value of the setting, which the command then contains; None if it has none."""
        return self._values.pop(name, None)

    def peek(self, name: str) -> Any:
        return self._values.get(name)

    def assume(self, name: str, value: Any) -> None:
        """Give a value to a setting that has none, because the command needs it."""
        self._values.setdefault(name, value)

    def leave_out(self, name: str, why: str) -> None:
        """Note that the command cannot contain the setting, if it has a value."""
        if name in self._values:
            self.notes.append(f"not carried over: {name} {shown(self._values.pop(name))}: {why}")

    def take_parsers(self, parsers: str, flags: Mapping[str, str]) -> list[tuple[str, ...]]:
        """Take the plan's format and return the arguments for what it declares as `parsers`, such as "vllm_parsers".

        `flags`: flag -> field of `EngineParsers`.
        """
        declared = engine_parsers(self.peek("format"), parsers)
        if declared is None:
            self.leave_out("format", f"{self._engine} has no parser for it")
            return []
        self.take("format")
        words = {flag: getattr(declared, field) for flag, field in flags.items()}
        return [(flag, word) for flag, word in words.items() if word is not None]

    def take_flag(self, name: str, flag: str) -> list[tuple[str, ...]]:
        """Take the setting as an argument; a switch that is off, or not set, has none."""
        value = self.take(name)
        if value is None or value is False:
            return []
        return [(flag,) if value is True else (flag, shown(value))]

    def can_draft(self, methods: Container[str], settings: Iterable[str]) -> bool:
        """Whether the plan drafts by one of the engine's `methods`; if not, its `settings` of drafting are left out."""
        method, tokens = self.peek("method"), self.peek("draft_tokens")
        if method is None:
            why = "nothing drafts" if self.peek("drafter") is None else "the plan has no drafting method"
        elif tokens == 0:
            why = "draft_tokens is 0"
        elif method not in methods:
            why = f"{self._engine} does not know the method {method}"
        else:
            return True
        if tokens == 0:
            self.take("draft_tokens")
        for name in settings:
            self.leave_out(name, why)
        return False

    def finish(self) -> tuple[str, ...]:
        """Note every setting that nothing took, and return all notes."""
        of_gateway = [name for name in self._values if name in BY_NAME and BY_NAME[name].gateway]
        listed = ", ".join(f"{name} {shown(self._values.pop(name))}" for name in of_gateway)
        for name in list(self._values):
            self.leave_out(name, f"{self._engine} has no such setting")
        if listed:
            front = f"run `dovetail serve --engine URL` in front of {self._engine}"
            self.notes.append(f"not carried over: {listed}: these are settings of Dovetail's gateway; {front}")
        return tuple(self.notes)


def engine_parsers(format: str | None, parsers: str) -> EngineParsers | None:
    """The attribute `parsers`, such as "vllm_parsers", of the family called `format`; None without such a family."""
    from dovetail.formats.registry import FAMILIES  # imports every family, which most plans do not need

    return getattr(FAMILIES.get(format or ""), parsers, None)


def shown(value: object) -> str:
    """A value as people write it: true, 0.9, fp8, {"A": 1}."""
    return value if isinstance(value, str) else json.dumps(value)


def variables(remaining: Remaining, gone: Mapping[str, str], foreign: str) -> dict[str, str]:
    """The plan's environment variables, without those that the engine does not know, which are noted.

    `gone`: variable -> why it is left out. `foreign`: the prefix of another engine's variables, or "".
    """
    carried: dict[str, str] = {}
    for name, value in (remaining.take("env") or {}).items():
        if value is None:
            continue
        if name in gone or (foreign and name.startswith(foreign)):
            why = gone.get(name, "another engine's variable")
            remaining.notes.append(f"not carried over: {name}={shown(value)}: {why}")
        else:
            carried[name] = shown(value)
    return carried
