"""The settings that `dovetail tune --speculation` compares, each as a recipe with which `dovetail serve` is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from dovetail.bench.race import Standing
from dovetail.checkpoints import hub
from dovetail.plan import Plan
from dovetail.plan.embedded import LOOKUP
from dovetail.plan.options import BY_NAME, GATE
from dovetail.plan.recipe import Conditions, Figure, Machine, Recipe, Variable

#: What a race chooses: of a plan's own values, none is carried over.
CHOSEN = ("method", "draft_tokens", *GATE)
#: Of the gateway's settings, those that change what is computed.
OF_ANSWERS = ("engine", "format", "generic_tools", "strict", "reasoning_budget", "served_model_name")
NONE = "none"


class Setting(msgspec.Struct, frozen=True):
    """`method`: None drafts nothing. `draft_tokens`: in each step, or with a measured gate the most."""

    method: str | None = None
    draft_tokens: int = 0
    gate: str = "off"

    @property
    def name(self) -> str:
        if self.method is None:
            return NONE
        return f"{self.method} {'up to ' if self.gate == 'measured' else ''}{self.draft_tokens}".strip()

    @property
    def values(self) -> dict[str, Any]:
        """The setting by the names of a plan. A `method` of "" is whatever a server has."""
        if self.method is None:
            return {"draft_tokens": 0}
        most = {"max_draft_tokens": self.draft_tokens} if self.gate == "measured" else {}
        method = {"method": self.method} if self.method else {}
        return {**method, "draft_tokens": self.draft_tokens, "gate": self.gate, **most}

    @property
    def fields(self) -> dict[str, Any]:
        """The setting as a request to Dovetail has it."""
        ungated = {} if self.gate == "measured" or self.method is None else {"gate": False}
        return {"dovetail": {"draft_tokens": self.draft_tokens, **ungated}}


def grid(methods: Sequence[str], numbers: Sequence[int], gates: Sequence[str]) -> list[Setting]:
    """No drafts, and every method with every number, and gated: up to the largest, of which the gate takes any part."""
    fixed = numbers if "off" in gates else ()
    most = [max(numbers)] if "measured" in gates else ()
    ways = [("off", number) for number in fixed] + [("measured", number) for number in most]
    return [Setting(), *(Setting(method, number, gate) for method in methods for gate, number in ways)]


def methods(plan: Plan) -> list[str]:
    """The plan's own method, MTP layers inside the target, and the lookup of its engine."""
    target, engine = plan.target, plan.value("engine")
    own = plan.value("method") if plan.value("drafter") is not None else None
    inside = target is not None and bool(target.mtp_layers) and target.mtp_weights is not False
    every = (own, "mtp" if inside else None, plan.value("method"), LOOKUP if engine == "embedded" else "ngram")
    return [*dict.fromkeys(method for method in every if method is not None)]


def recipe(plan: Plan, setting: Setting, source: str) -> Recipe:
    """The plan with another way of drafting."""
    chosen = {
        name: each.value
        for name, each in plan.settings.items()
        if each.source not in ("default", "drafter")
        and each.value is not None
        and name not in ("env", *CHOSEN)
        and (BY_NAME[name].group != "serving" or name in OF_ANSWERS)
        and (BY_NAME[name].group != "drafting" or setting.method == plan.value("method"))
    }
    values = {"drafter": NONE} if setting.method is None else setting.values
    if "drafter" in chosen:
        values.pop("method", None)  # its config says it
    target, gpus = plan.value("target"), plan.gpus
    match = Conditions(
        model=(target,) if hub.ID.fullmatch(target) else None,
        architecture=None if plan.target is None or hub.ID.fullmatch(target) else (plan.target.architecture,),
        gpu=None if gpus is None else Machine(name=(gpus.gpu.name,), count=gpus.count),
    )
    env = {name: Variable(why=f"from the {each.source}", value=each.value) for name, each in plan.variables.items()}
    engine = {"engine": plan.value("engine")}
    return Recipe(name=slug(setting.name), source=source, settings={**engine, **chosen, **values}, match=match, env=env)


def tuned(
    chosen: Recipe, setting: str, limits: Mapping[str, int], standings: Sequence[Standing], conditions: str
) -> Recipe:
    """The recipe that a race ends in. `limits`: where the drafts of the chosen setting do not pay."""
    figures = [
        Figure(
            what=f"decode, {each.setting}",
            value=round(speed, 2),
            unit="tokens/s",
            conditions=f"{place}; {conditions}",
            by="`dovetail tune`",
        )
        for each in standings
        if each.setting in (setting, NONE)
        for place, speed in each.places.items()
    ]
    return msgspec.structs.replace(
        chosen,
        name=slug(f"tuned-{setting}"),
        title=f"Drafting as measured on this machine: {setting}",
        settings={**chosen.settings, **limits},
        why=dict.fromkeys(limits, "drafting was slower than none there"),
        measured=tuple(figures),
        notes=tuple(f"ruled out: {each.setting}, {each.because}" for each in standings if each.because),
    )


def write(recipe: Recipe, file: Path) -> None:
    """Write the recipe as `serve --recipe FILE` reads it."""
    data = _pruned(msgspec.to_builtins(recipe))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100), encoding="utf-8")


def _pruned(value: Any) -> Any:
    """A copy without empty values, in which no object is twice: YAML would write it as an alias."""
    if isinstance(value, Mapping):
        pruned = {name: _pruned(each) for name, each in value.items()}
        return {name: each for name, each in pruned.items() if each not in (None, [], {})}
    return [_pruned(each) for each in value] if isinstance(value, list | tuple) else value


def slug(name: str) -> str:
    """`name` as recipes are called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "tuned"
