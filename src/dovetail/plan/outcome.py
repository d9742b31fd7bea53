"""A plan as data: every setting and where it came from, what was found, what it takes of memory, what to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.target import Target
from dovetail.plan.candidate import Advice
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Setting
from dovetail.plan.memory import Budget


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan takes of memory, in bytes.

    `weights` and `drafter_weights` are as they are stored. `cache_per_token` is what a token takes of each GPU, target
    and drafter together (None: not known). `each` is how one GPU's memory is spent, None where the GPUs are not known
    or not used.
    """

    parameters: int
    active: int
    weights: int
    weights_from: Literal["index", "files", "shape"]
    drafter_weights: int
    cache_per_token: float | None
    gpus: str | None
    gpus_used: int
    each: Budget | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what runs.

    `settings` has every setting there is; a None is none, or left to the engine. `variables` are the environment's,
    each with its own source, which `settings["env"]` holds together. `target` and `drafter` are what their files say,
    None where there is none or where it could not be looked at; `folders` is where these, and the tokenizer, lie on
    this machine. `compute` is this machine's processor and its kernel for the weights, None on other engines than the
    embedded one. `reason` is why the engine is what it is, where nobody asked for one.
    """

    settings: Mapping[str, Setting[Any]]
    variables: Mapping[str, Setting[Any]]
    target: Target | None
    drafter: Drafter | None
    gpus: Gpus | None
    fit: Fit | None
    recipes: tuple[str, ...]
    advice: tuple[Advice, ...]
    folders: Mapping[str, str]
    reason: str | None = None
    compute: Setting[str] | None = None

    def value(self, name: str) -> Any:
        """The value of a setting. Raises `KeyError` for what is none."""
        return self.settings[name].value

    @property
    def command_settings(self) -> dict[str, Setting[Any]]:
        """The settings that a command for another engine carries: the GPUs are what they were made for."""
        return {name: setting for name, setting in self.settings.items() if name != "gpus"}

    def advice_of(self, level: Literal["warning", "note", "advice"]) -> list[Advice]:
        return [each for each in self.advice if each.level == level]

    def data(self) -> dict[str, Any]:
        """As JSON has it: the settings by name, and beside them what else there is to say."""
        return msgspec.to_builtins(  # type: ignore[no-any-return]
            dict(self.settings)
            | {
                "compute": self.compute,
                "variables": self.variables,
                "recipes": self.recipes,
                "looked": {"target": _described(self.target), "drafter": _described(self.drafter)},
                "reason": self.reason,
                "fit": self.fit,
                "warnings": [_said(each) for each in self.advice_of("warning")],
                "notes": [_said(each) for each in self.advice_of("note")],
                "advice": [_said(each) for each in self.advice_of("advice")],
            }
        )


def _described(checkpoint: Target | Drafter | None) -> dict[str, Any] | None:
    """What was read of a checkpoint, without the fields of its config as they are."""
    if checkpoint is None:
        return None
    return {name: value for name, value in msgspec.structs.asdict(checkpoint).items() if name != "fields"}


def _said(advice: Advice) -> dict[str, str]:
    return {"setting": advice.setting, "message": advice.message}
