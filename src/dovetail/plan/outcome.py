"""The finished plan as data: settings with their sources, the checkpoints, the memory that they take, and advice."""

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
    """The memory that the plan takes, in bytes.

    `parameters` and `active`: numbers of parameters. `weights`, `drafter_weights`: the weights as they are stored.
    `weights_from`: what the size was read from. `cache_per_token`: KV cache of target and drafter for a token on each
    GPU, None if unknown. `each`: how the memory of one GPU is spent, None if no GPUs are known or used.
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

    `settings`: every setting; None: it has no value, or the engine decides. `variables`: the environment variables
    of `settings["env"]`, each with its own source. `target`, `drafter`: what their files declare, None if there is no
    such checkpoint or it could not be read. `folders`: the folders of target, drafter and tokenizer on this machine.
    `compute`: this machine's processor and its kernel for the weights, for the embedded engine. `reason`: why the
    engine is vLLM, if no source set it.
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
        """The value of a setting. Raises `KeyError` if there is no setting called `name`."""
        return self.settings[name].value

    @property
    def command_settings(self) -> dict[str, Setting[Any]]:
        """The settings that a command for another engine may contain: all but the GPUs that the plan is for."""
        return {name: setting for name, setting in self.settings.items() if name != "gpus"}

    def advice_of(self, level: Literal["warning", "note", "advice"]) -> list[Advice]:
        return [each for each in self.advice if each.level == level]

    def data(self) -> dict[str, Any]:
        """The plan as plain data for JSON: every setting by its name, and the other fields."""
        return msgspec.to_builtins(  # type: ignore[no-any-return]
            dict(self.settings)
            | {
                "compute": self.compute,
                "variables": self.variables,
                "recipes": self.recipes,
                "looked": {"target": _described(self.target), "drafter": _described(self.drafter)},
                "reason": self.reason,
                "fit": self.fit,
                "warnings": [_message(each) for each in self.advice_of("warning")],
                "notes": [_message(each) for each in self.advice_of("note")],
                "advice": [_message(each) for each in self.advice_of("advice")],
            }
        )


def _described(checkpoint: Target | Drafter | None) -> dict[str, Any] | None:
    """What was read of a checkpoint, without its raw config."""
    if checkpoint is None:
        return None
    return {name: value for name, value in msgspec.structs.asdict(checkpoint).items() if name != "fields"}


def _message(advice: Advice) -> dict[str, str]:
    return {"setting": advice.setting, "message": advice.message}
