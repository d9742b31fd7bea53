"""What Dovetail knows of the program of an engine that it starts: vLLM and llama.cpp's server implement `Program`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

Phase = Literal["starting", "download", "load", "compile", "allocate", "capture", "ready"]


class Progress(NamedTuple):
    """The phase of an engine's start, and how much of it is done, if the log says so."""

    phase: Phase
    done: int | None = None
    total: int | None = None


class Failure(NamedTuple):
    """Why an engine ended: the error, and the log lines that show it. `drafter`: the drafter was being loaded."""

    error: str
    lines: tuple[str, ...]
    drafter: bool = False


class Program(Protocol):
    """One engine's program: its name, and how its output is read.

    `name`: what it is called in messages. `url`: its address in HTTP's Host header; it listens on a `Socket`.
    """

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    def progress(self, line: str) -> Progress | None:
        """The progress that a line of the output reports; None if it reports none."""

    def failure(self, log: Sequence[str]) -> Failure | None:
        """The error that ended the program, from the last lines of its output; None if no line looks like an error."""

    def last(self, log: Sequence[str]) -> tuple[str, ...]:
        """The last lines that are not empty."""

    def advice(self, failure: Failure) -> list[str]:
        """Sentences on what to do about `failure`. May start the program to ask it for its options."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start `program`.

    `arguments`: the command line, with the program first. `environment`: contains the `key`, which other users cannot
    read there. `notes`: settings of the plan that it has no option for.
    """

    program: Program
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    key: str
    notes: tuple[str, ...]


def ending(code: int) -> str:
    """What an exit code means, in words. Above 128 it is 128 + the number of a signal, as in shells."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    if name == "SIGKILL":
        return "killed (SIGKILL): the system may have run out of memory, which its log (dmesg) tells"
    return f"ended by {name}"
