"""Finds what a plan is about: the target, which a drafter may name, the GPUs, the recipes for them, and the drafter.

Each adds a layer of settings below those that were said. A model on the hub that cannot be asked is planned for as far
as recipes know it, with a warning.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import UNSET

from dovetail.checkpoints.drafter import Drafter, mtp_drafter
from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.checkpoints.target import Target
from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import hardware, recipe
from dovetail.plan.candidate import Advice
from dovetail.plan.conditions import when_plainly
from dovetail.plan.drafting_precedence import combined
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Layer, Setting, overlay, value
from dovetail.plan.recipe import Facts, Recipe


class Discovery(NamedTuple):
    """`layers`, strongest first, down to the drafter's own. `near`: recipes for the model, on whatever GPUs.

    `target` and `drafter` are None where there is none or a hub could not be asked.
    """

    layers: list[Layer]
    target: Target | None
    drafter: Drafter | None
    gpus: Gpus | None
    recipes: tuple[str, ...]
    near: tuple[Recipe, ...]
    advice: list[Advice]


def discover(said: list[Layer], checkpoints: CheckpointResolver, asked: str | None) -> Discovery:
    """What there is for the layers that were `said`. `asked`: a recipe's name or file, "none", None for those that fit.

    Raises `PlanError` and `CheckpointError` for what is not there, or is something else.
    """
    advice: list[Advice] = []
    gpus = _machine(overlay(said).get("gpus"), advice)
    chosen = None if asked in (None, "none") else recipe.called(asked)
    layers = [*said, *([] if chosen is None else [recipe.named(chosen, _facts(said, gpus))])]
    demo = _value(layers, "target") is None and _value(layers, "drafter") is None
    if demo and chosen is not None:
        raise PlanError(f"recipe {chosen.name} is for no model of its own: give MODEL")
    if demo:
        layers.append(recipe.demo())
    own: dict[str, Any] = {}
    name = _value(layers, "target")
    if name is None:
        name = own["target"] = checkpoints.verifier(_value(layers, "drafter"))
    ours = () if asked == "none" or demo else recipe.every()
    known = ours if chosen is None else (chosen,)
    in_recipe = chosen is not None or bool(recipe.possible(_facts(layers, gpus, name), known))
    reason = None
    if "target" in own:
        reason = "the plan follows the drafter alone"
    elif in_recipe and not os.path.isabs(name):
        reason = "the plan follows the recipe"
    target = _target(name, checkpoints, reason, advice)
    facts = _facts(layers, gpus, name, target)
    if chosen is None:
        layers += _fitting(facts, known, target is None, advice)
    elif target is not None and not recipe.possible(facts, known):
        others = f"recipe {chosen.name} was named but is for other things: {when_plainly(chosen.match)}"
        advice.append(Advice("warning", "recipe", others))
    drafter = _drafter(layers, checkpoints, target, advice)
    if drafter is not None:
        own |= {"method": drafter.method, "draft_tokens": drafter.draft_tokens}
        if target is None:
            advice.append(Advice("note", "drafter", _described(drafter)))
    recipes = tuple(layer.source.removeprefix("recipe ") for layer in layers[len(said) :])
    layers.append(Layer("drafter", {name: value for name, value in own.items() if value is not None}))
    near = tuple(recipe.near(facts, ours))
    return Discovery(layers, target, drafter, gpus, recipes, near, advice)


def _machine(asked: Setting[Any] | None, advice: list[Advice]) -> Gpus | None:
    if asked is not None and asked.value not in (None, "auto"):
        try:
            return hardware.parse(asked.value)
        except PlanError as error:
            raise PlanError(f"{asked.source}: {error.message}") from error
    found = hardware.detect()
    if found is None and asked is not None and asked.value == "auto":
        advice.append(Advice("warning", "gpus", "nvidia-smi finds no GPU here, so memory is unchecked"))
    return found


def _value(layers: list[Layer], name: str) -> Any:
    return value(combined(layers), name)


def _facts(layers: list[Layer], gpus: Gpus | None, model: str | None = None, target: Target | None = None) -> Facts:
    settings = combined(layers)
    drafter = settings.get("drafter")
    return Facts(
        model=model or _value(layers, "target"),
        model_type=None if target is None else target.family,
        architectures=() if target is None else (target.architecture,),
        drafter=UNSET if drafter is None else drafter.value,
        gpus=gpus,
        settings={name: setting.value for name, setting in settings.items()},
    )


def _target(name: str, checkpoints: CheckpointResolver, reason: str | None, advice: list[Advice]) -> Target | None:
    """The target called `name`.

    None, with a warning, when it cannot be reached and `reason` says why a plan can be made without it.
    """
    try:
        checkpoints.target_folder(name)
    except DovetailError as error:
        if reason is None:
            raise
        unread = f"{name} could not be read, so sizes and fit are unchecked and {reason}: {error.message}"
        advice.append(Advice("warning", "target", unread))
        return None
    return checkpoints.target(name)


def _described(drafter: Drafter) -> str:
    """What a drafter declares about itself, in one line."""
    parts = [f"{drafter.path} drafts by {drafter.method}"]
    if drafter.layers and drafter.attention is not None:
        parts.append(f"{drafter.layers} layer{'s' if drafter.layers > 1 else ''} of {drafter.attention.word}")
    for what, size in (
        ("hidden states of width", drafter.target_hidden),
        ("a vocabulary of", drafter.vocab),
        ("a draft vocabulary of", drafter.draft_vocab),
    ):
        if size is not None:
            parts.append(f"{what} {size:,}")
    return ", ".join(parts)


def _fitting(facts: Facts, known: Iterable[Recipe], unlooked: bool, advice: list[Advice]) -> list[Layer]:
    """Layers of the recipes that fit.

    If none fits a target that could not be read, the layer of a recipe that may fit it, with a warning.
    """
    matches = recipe.matching(facts, known)
    if not matches and unlooked:
        matches = recipe.possible(facts, known)[:1]
        for match in matches:
            said_for = when_plainly(match.recipe.match)
            taken = (
                f"recipe {match.recipe.name} is taken for want of another, and may not be for these GPUs: {said_for}"
            )
            advice.append(Advice("warning", "recipe", taken))
    return [match.layer for match in matches]


def _drafter(
    layers: list[Layer], checkpoints: CheckpointResolver, target: Target | None, advice: list[Advice]
) -> Drafter | None:
    settings = combined(layers)
    named, method = settings.get("drafter"), settings.get("method")
    if named is not None and named.value is not None:
        try:
            checkpoints.folder(named.value)
        except DovetailError as error:
            # Whoever says how it drafts (a recipe, mostly) has said what a plan needs of it.
            if method is None or os.path.isabs(named.value):
                raise
            unlooked = f"{named.value} could not be read, so whether it fits is unchecked: {error.message}"
            advice.append(Advice("warning", "drafter", unlooked))
            return None
        return checkpoints.drafter(named.value)
    if method is None or method.value != "mtp" or target is None:
        return None
    try:
        return mtp_drafter(target)
    except CheckpointError as error:
        raise PlanError(f"method is mtp ({method.source}) but {error.message}, or --method none") from error
