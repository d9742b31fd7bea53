"""A command that can be pasted into a shell, and the keeping of accounts about what of a plan went into it."""

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


class Shell(str):
    """Text that the shell has to expand, and that is therefore written without quotes of ours."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """`start` is the program and what comes first, `arguments` each a flag with its values.

    `variables` are environment variables, `files` those that must be written before (name -> content), `notes` what a
    reader must know, above all what of the plan was not carried over.
    """

    start: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The words, as the program gets them (but for what the shell expands)."""
        return [*self.start, *(word for argument in self.arguments for word in _joined(argument))]

    def script(self) -> str:
        """Lines for a POSIX shell, notes first, as comments."""
        lines = [line for note in self.notes for line in comment(note)]
        for name, content in self.files.items():
            lines += [f"cat >{shlex.quote(name)} <<'END'", *content.rstrip("\n").split("\n"), "END"]
        words = [f"{name}={_quoted(value)}" for name, value in self.variables.items()]
        words += [" ".join(map(_quoted, part)) for part in (self.start, *map(_joined, self.arguments))]
        return "\n".join([*lines, " \\\n  ".join(words)]) + "\n"


def _joined(argument: tuple[str, ...]) -> tuple[str, ...]:
    """``--flag=value`` where the value is, or could turn out to be, what a parser takes for another flag."""
    if len(argument) != 2 or not (isinstance(argument[1], Shell) or argument[1].startswith("-")):
        return argument
    joined = "=".join(argument)
    return (Shell(joined) if isinstance(argument[1], Shell) else joined,)


def _quoted(text: str) -> str:
    return text if isinstance(text, Shell) else shlex.quote(text)


def comment(note: str) -> list[str]:
    """A note as lines of a comment."""
    # One line breaks into several, and never out of the comment, nor does it steer the terminal.
    return textwrap.wrap(
        printable(" ".join(note.split())),
        width=100,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str) -> str:
    """`text` with a sign in place of what neither YAML nor a terminal should see."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


class Account:
    """What of a plan is not in a command yet. A setting that is None is left to the engine, and needs no word."""

    def __init__(self, plan: Mapping[str, Setting[Any]], engine: str) -> None:
        self._left = {name: setting.value for name, setting in plan.items() if setting.value is not None}
        self._engine = engine
        self.notes: list[str] = []
        self._left.pop("engine", None)  # what another engine is asked for replaces it

    def take(self, name: str) -> Any:
        """The value of the setting, which is then carried over; None if there is none."""
        return self._left.pop(name, None)

    def peek(self, name: str) -> Any:
        return self._left.get(name)

    def leave(self, name: str, why: str) -> None:
        """Say that the setting is not carried over, if it has a value."""
        if name in self._left:
            self.notes.append(f"not carried over: {name} {shown(self._left.pop(name))}: {why}")

    def take_parsers(self, parsers: str) -> EngineParsers | None:
        """The engine's own parsers for the plan's format, from its attribute `parsers`; the format is then taken."""
        format = self.peek("format")
        found = None if format is None else engine_parsers(format, parsers)
        if found is None:
            self.leave("format", f"{self._engine} has no parser for it")
        else:
            self.take("format")
        return found

    def drafts(self, methods: Container[str], settings: Iterable[str]) -> bool:
        """Whether something drafts by one of the engine's `methods`; if not, the `settings` of drafting are left."""
        method, tokens = self.peek("method"), self.peek("draft_tokens")
        if method is None:
            why = "nothing drafts" if self.peek("drafter") is None else "the plan does not say how it drafts"
        elif tokens == 0:
            why = "no tokens are to be drafted"
        elif method not in methods:
            why = f"{self._engine} does not know the method {method}"
        else:
            return True
        if tokens == 0:
            self.take("draft_tokens")
        for name in settings:
            self.leave(name, why)
        return False

    def close(self) -> tuple[str, ...]:
        """All notes, when everything that has a word was taken."""
        own = [name for name in self._left if name in BY_NAME and BY_NAME[name].gateway]
        said = ", ".join(f"{name} {shown(self._left.pop(name))}" for name in own)
        for name in list(self._left):
            self.leave(name, f"{self._engine} has no word for it")
        if said:
            front = f"run `dovetail serve --engine URL` in front of {self._engine}"
            self.notes.append(f"not carried over: {said}: Dovetail's own; {front}")
        return tuple(self.notes)


def engine_parsers(format: str, parsers: str) -> EngineParsers | None:
    """What the format called `format` declares under `parsers`, such as "vllm_parsers"; None if it is no family's."""
    from dovetail.formats.registry import FAMILIES  # imports every family, which most plans do not need

    return getattr(FAMILIES[format], parsers) if format in FAMILIES else None


def shown(value: object) -> str:
    """A value as people write it: true, 0.9, fp8, {"A": 1}."""
    return value if isinstance(value, str) else json.dumps(value)


def variables(account: Account, gone: Mapping[str, str], foreign: str) -> dict[str, str]:
    """The plan's environment variables but those that the engine does not know, for which there are notes then.

    `gone`: variable -> why it is not carried over. `foreign`: the beginning of names that are another engine's.
    """
    carried: dict[str, str] = {}
    for name, value in (account.take("env") or {}).items():
        if value is None:
            continue
        if name in gone or (foreign and name.startswith(foreign)):
            why = gone.get(name, "another engine's variable")
            account.notes.append(f"not carried over: {name}={shown(value)}: {why}")
        else:
            carried[name] = shown(value)
    return carried
