"""Who drafts, and how much, where sources say different things: a stronger "none" overrules a weaker drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.checkpoints.drafter import Drafter
from dovetail.errors import PlanError
from dovetail.plan.layers import Layer, Setting, overlay
from dovetail.plan.methods import LOOKUPS
from dovetail.plan.options import BY_NAME

Settings = Mapping[str, Setting[Any]]


def combined(layers: Sequence[Layer]) -> dict[str, Setting[Any]]:
    """What `layers` come to, where a drafter or a method that is none overrules all that weaker ones say of drafting.

    A method that looks earlier text up, or is inside the target, likewise overrules a weaker drafter; of draft_tokens
    and a smaller max_draft_tokens the stronger is both. Raises `PlanError` where one layer says both.
    """
    found, order = overlay(layers), [layer.source for layer in layers]
    tokens, most = found.get("draft_tokens"), found.get("max_draft_tokens")
    if tokens is not None and most is not None and most.value is not None and tokens.value > most.value:
        if tokens.source == most.source:
            raise PlanError(
                f"max_draft_tokens is {most.value} ({most.source}) but draft_tokens is {tokens.value} "
                f"({tokens.source}): the most cannot be less, leave one of them out"
            )
        stronger = min(tokens, most, key=lambda setting: _strength(setting, order))
        found["draft_tokens"] = found["max_draft_tokens"] = stronger
    drafter, method = found.get("drafter"), found.get("method")
    if drafter is not None and method is not None:
        below = _strength(method, order) - _strength(drafter, order)  # how far who says the method is
        if drafter.value is not None and method.value in (None, *LOOKUPS) and below >= 0:
            raise PlanError(
                f"method is {method.value or 'none'} ({method.source}) but drafter is {drafter.value} "
                f"({drafter.source}): leave one of them out"
            )
        if drafter.value is not None and method.value in (None, "mtp", *LOOKUPS) and below < 0:
            drafter = found["drafter"] = Setting(None, method.source)
        elif drafter.value is None and method.value is not None and below > 0:
            method = found["method"] = Setting(None, drafter.source)
    said = [setting for setting in (drafter, method) if setting is not None]
    if not said or any(setting.value is not None for setting in said):
        return found
    ruler = min(said, key=lambda setting: _strength(setting, order))
    for name, setting in found.items():
        weaker = _strength(setting, order) > _strength(ruler, order)
        if BY_NAME[name].group == "drafting" and setting.value not in (None, 0) and weaker:
            found[name] = Setting(0 if name == "draft_tokens" else None, ruler.source)
    return found


def _strength(setting: Setting[Any], order: Sequence[str]) -> int:
    return order.index(setting.source)


def check(settings: Settings, drafter: Drafter | None) -> None:
    """Raise `PlanError` for a method that is not the drafter's, and for a draft length where nothing drafts."""
    method, its, tokens = settings["method"], settings["drafter"], settings["draft_tokens"]
    if drafter is not None and method.value != drafter.method:
        raise PlanError(
            f"method is {method.value or 'none'} ({method.source}) but {drafter.path} ({its.source}) drafts "
            f"by {drafter.method}: leave --method out, or name another drafter"
        )
    if method.value is None and its.value is None and tokens.value:
        raise PlanError(
            f"draft_tokens is {tokens.value} ({tokens.source}) but drafter is none ({its.source}): name a drafter, "
            "or leave draft_tokens out"
        )
