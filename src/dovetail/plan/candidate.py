"""What a check of fit is given and what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.target import Target
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Setting, value


class Advice(msgspec.Struct, frozen=True):
    """Something to know about a plan that can run, or to gain ("advice"); `setting` is what it is about."""

    level: Literal["warning", "note", "advice"]
    setting: str
    message: str


class Candidate(msgspec.Struct, frozen=True):
    """What is held against one another. `gpus` is None where they are not known."""

    target: Target
    drafter: Drafter | None
    settings: Mapping[str, Setting[Any]]
    gpus: Gpus | None

    def value(self, name: str) -> Any:
        """A setting's value, None where nobody said one."""
        return value(self.settings, name)

    def size(self, name: str) -> int:
        """A degree of parallelism, one where nobody said one."""
        value: int | None = self.value(name)
        return 1 if value is None else value

    def text(self, name: str) -> str:
        """ "context is 4096 (command line)"."""
        setting = self.settings.get(name)
        return f"{name} is not set" if setting is None else f"{name} is {setting.value} ({setting.source})"

    @property
    def engine(self) -> str:
        return self.value("engine") or "embedded"

    @property
    def method(self) -> str | None:
        named: str | None = self.value("method")
        return named or (self.drafter.method if self.drafter else None)
