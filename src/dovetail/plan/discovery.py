"""Finds what a plan is about: target, drafter, GPUs and recipes, each of which adds a layer of settings.

The layers of the user come first. A checkpoint that cannot be reached is planned for as far as a recipe or its drafter
describes it, with a warning.
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
from dovetail.plan.drafting_precedence import combined
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Layer, Setting, overlay, value
from dovetail.plan.recipe import Facts, Recipe, conditions_text


class Discovery(NamedTuple):
    """What a plan is about. `layers` go from the strongest, the user's, to the weakest, the drafter's own.

    `target` and `drafter` are None when there is none or when it could not be reached. `recipes` are the names of those
    that are applied, `near` those for the model on any GPUs.
    """

    layers: list[Layer]
    target: Target | None
    drafter: Drafter | None
    gpus: Gpus | None
    recipes: tuple[str, ...]
    near: tuple[Recipe, ...]
    advice: list[Advice]


def discover(user_layers: list[Layer], checkpoints: CheckpointResolver, recipe_name: str | None) -> Discovery:
    """What the user's layers lead to. `recipe_name`: a recipe's name or file, "none", or None for all that fit.

    Raises `PlanError` and `CheckpointError` for what does not exist or is something else.
    """
    advice: list[Advice] = []
    gpus = _gpus(overlay(user_layers).get("gpus"), advice)
    chosen = None if recipe_name in (None, "none") else recipe.called(recipe_name)
    layers = list(user_layers)
    if chosen is not None:
        layers.append(recipe.named(chosen, _facts(user_layers, gpus)))
    demo = _value(layers, "target") is None and _value(layers, "drafter") is None
    if demo and chosen is not None:
        raise PlanError(f"recipe {chosen.name} names no model: give MODEL")
    if demo:
        layers.append(recipe.demo())
    from_drafter: dict[str, Any] = {}
    name = _value(layers, "target")
    if name is None:
        name = from_drafter["target"] = checkpoints.verifier(_value(layers, "drafter"))
    installed = () if recipe_name == "none" or demo else recipe.every()
    candidates = installed if chosen is None else (chosen,)
    reason = None
    if "target" in from_drafter:
        reason = "the plan follows the drafter alone"
    elif not os.path.isabs(name) and (chosen or recipe.possible(_facts(layers, gpus, name), candidates)):
        reason = "the plan follows the recipe"
    target = _target(name, checkpoints, reason, advice)
    facts = _facts(layers, gpus, name, target)
    if chosen is None:
        layers += _recipe_layers(facts, candidates, target is None, advice)
    elif target is not None and chosen.match is not None and not recipe.possible(facts, candidates):
        other = f"recipe {chosen.name} is for something else: {conditions_text(chosen.match)}"
        advice.append(Advice("warning", "recipe", other))
    drafter = _drafter(layers, checkpoints, target, advice)
    if drafter is not None:
        from_drafter |= {"method": drafter.method, "draft_tokens": drafter.draft_tokens}
        if target is None:
            advice.append(Advice("note", "drafter", _described(drafter)))
    recipes = tuple(layer.source.removeprefix("recipe ") for layer in layers[len(user_layers) :])
    layers.append(Layer("drafter", {name: value for name, value in from_drafter.items() if value is not None}))
    return Discovery(layers, target, drafter, gpus, recipes, tuple(recipe.near(facts, installed)), advice)


def _gpus(declared: Setting[Any] | None, advice: list[Advice]) -> Gpus | None:
    if declared is not None and declared.value not in (None, "auto"):
        try:
            return hardware.parse(declared.value)
        except PlanError as error:
            raise PlanError(f"{declared.source}: {error.message}") from error
    detected = hardware.detect()
    if detected is None and declared is not None and declared.value == "auto":
        advice.append(Advice("warning", "gpus", "nvidia-smi finds no GPU here, so memory is unchecked"))
    return detected


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
        mtp=None if target is None else bool(target.mtp_layers) and target.mtp_weights is not False,
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


def _recipe_layers(facts: Facts, recipes: Iterable[Recipe], unread: bool, advice: list[Advice]) -> list[Layer]:
    """Layers of the recipes that fit.

    If none fits a target that could not be read (`unread`), the layer of a recipe that may fit it, with a warning.
    """
    matches = recipe.matching(facts, recipes)
    if not matches and unread:
        matches = recipe.possible(facts, recipes)[:1]
        for match in matches:
            condition = conditions_text(match.recipe.match)
            warning = f"recipe {match.recipe.name} is used because no other fits, but may not suit these GPUs: "
            advice.append(Advice("warning", "recipe", warning + condition))
    for match in matches:
        if recipe.lacks_mtp(facts, match.recipe) and facts.drafter is UNSET and "method" not in facts.settings:
            lacking = f"recipe {match.recipe.name} drafts with the target's MTP layers, but {facts.model} holds none"
            advice.append(Advice("warning", "method", f"{lacking}: its settings of drafting are not used"))
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
            # A layer that sets the method, usually a recipe, has set what the plan needs of the drafter.
            if method is None or os.path.isabs(named.value):
                raise
            unread = f"{named.value} could not be read, so whether it fits is unchecked: {error.message}"
            advice.append(Advice("warning", "drafter", unread))
            return None
        return checkpoints.drafter(named.value)
    if method is None or method.value != "mtp" or target is None:
        return None
    try:
        return mtp_drafter(target)
    except CheckpointError as error:
        raise PlanError(f"method is mtp ({method.source}) but {error.message}, or --method none") from error
