"""Decides between layers that set drafter, method and draft_tokens differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.methods import LOOKUPS
from dovetail.errors import PlanError
from dovetail.plan.layers import Layer, Setting, overlay
from dovetail.plan.options import BY_NAME

Settings = Mapping[str, Setting[Any]]


def combined(layers: Sequence[Layer]) -> dict[str, Setting[Any]]:
    """Overlay `layers`, which start with the strongest, by the rules of drafting.

    - A drafter or a method of none also unsets what weaker layers set about drafting.
    - A lookup method, or mtp, unsets a weaker layer's drafter.
    - If draft_tokens is larger than max_draft_tokens, both get the stronger layer's value.

    Raises `PlanError` if one layer contradicts itself.
    """
    settings, order = overlay(layers), [layer.source for layer in layers]
    tokens, most = settings.get("draft_tokens"), settings.get("max_draft_tokens")
    if tokens is not None and most is not None and most.value is not None and tokens.value > most.value:
        if tokens.source == most.source:
            raise PlanError(
                f"max_draft_tokens is {most.value} ({most.source}) but draft_tokens is {tokens.value} "
                f"({tokens.source}): draft_tokens cannot be larger, leave one of them out"
            )
        stronger = min(tokens, most, key=lambda setting: _strength(setting, order))
        settings["draft_tokens"] = settings["max_draft_tokens"] = stronger
    drafter, method = settings.get("drafter"), settings.get("method")
    if drafter is not None and method is not None:
        below = _strength(method, order) - _strength(drafter, order)  # positive if the drafter's layer is stronger
        if drafter.value is not None and method.value in (None, *LOOKUPS) and below >= 0:
            raise PlanError(
                f"method is {method.value or 'none'} ({method.source}) but drafter is {drafter.value} "
                f"({drafter.source}): leave one of them out"
            )
        if drafter.value is not None and method.value in (None, "mtp", *LOOKUPS) and below < 0:
            drafter = settings["drafter"] = Setting(None, method.source)
        elif drafter.value is None and method.value is not None and below > 0:
            method = settings["method"] = Setting(None, drafter.source)
    chosen = [setting for setting in (drafter, method) if setting is not None]
    if not chosen or any(setting.value is not None for setting in chosen):
        return settings
    strongest = min(chosen, key=lambda setting: _strength(setting, order))
    for name, setting in settings.items():
        weaker = _strength(setting, order) > _strength(strongest, order)
        if BY_NAME[name].group == "drafting" and setting.value not in (None, 0) and weaker:
            settings[name] = Setting(0 if name == "draft_tokens" else None, strongest.source)
    return settings


def _strength(setting: Setting[Any], order: Sequence[str]) -> int:
    """The place of the setting's layer; 0 is the strongest."""
    return order.index(setting.source)


def check(settings: Settings, drafter: Drafter | None) -> None:
    """Raise `PlanError` if `method` is not the drafter's, or if draft_tokens is set and nothing drafts."""
    method, named, tokens = settings["method"], settings["drafter"], settings["draft_tokens"]
    if drafter is not None and method.value != drafter.method:
        raise PlanError(
            f"method is {method.value or 'none'} ({method.source}) but {drafter.path} ({named.source}) drafts "
            f"by {drafter.method}: leave --method out, or name another drafter"
        )
    if method.value is None and named.value is None and tokens.value:
        raise PlanError(
            f"draft_tokens is {tokens.value} ({tokens.source}) but drafter is none ({named.source}): name a drafter, "
            "or leave draft_tokens out"
        )
