"""A plan that is still to be checked, and what a check may report about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.target import Target
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Setting, value


class Advice(msgspec.Struct, frozen=True):
    """A message about a plan that can run: a warning, a note, or advice on what could be gained.

    `setting` is the setting that the message is about.
    """

    level: Literal["warning", "note", "advice"]
    setting: str
    message: str


class Candidate(msgspec.Struct, frozen=True):
    """The parts of a plan that must fit each other. `gpus` is None if the GPUs are unknown."""

    target: Target
    drafter: Drafter | None
    settings: Mapping[str, Setting[Any]]
    gpus: Gpus | None

    def value(self, name: str) -> Any:
        """The value of a setting, None if it has none."""
        return value(self.settings, name)

    def size(self, name: str) -> int:
        """The value of a numeric setting, such as a degree of parallelism; 1 if it has none."""
        size: int | None = self.value(name)
        return 1 if size is None else size

    def text(self, name: str) -> str:
        """The setting with its source, such as "context is 4096 (command line)"."""
        setting = self.settings.get(name)
        return f"{name} is not set" if setting is None else f"{name} is {setting.value} ({setting.source})"

    @property
    def engine(self) -> str:
        return self.value("engine") or "embedded"

    @property
    def method(self) -> str | None:
        method: str | None = self.value("method")
        return method or (self.drafter.method if self.drafter else None)
