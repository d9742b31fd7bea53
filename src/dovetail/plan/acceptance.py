"""How likely a drafter's tokens are to be accepted, as far as the recipe that names the drafter has measured it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from dovetail.gate import per_draft
from dovetail.plan.layers import Setting
from dovetail.plan.recipe import Recipe, every

_UNIT = re.compile(r"tokens a step, of (\d+)")


def expected_acceptance(settings: Mapping[str, Setting[Any]]) -> float | None:
    """The probability that a draft is accepted when those before it were; None if the drafter in a plan's `settings` is
    not from one of Dovetail's recipes, or the recipe has no acceptance length."""
    source = settings["drafter"].source if "drafter" in settings else None
    lengths = [own for recipe in every() if source == f"recipe {recipe.name}" for own in _measured(recipe)]
    return statistics.median(lengths) if lengths else None


def _measured(recipe: Recipe) -> list[float]:
    figures = [figure for figure in recipe.measured if figure.what == "acceptance length"]
    units = [(figure.value, _UNIT.fullmatch(figure.unit)) for figure in figures]
    return [per_draft(length, int(unit[1]) - 1) for length, unit in units if unit is not None]
