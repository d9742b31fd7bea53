"""Recipes: settings known to work, as data files in `recipes/`, each saying where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import PlanError
from dovetail.plan.layers import Layer
from dovetail.plan.options import check

FOLDER = Path(__file__).parent / "recipes"


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`source` says who made and measured it. Paths in `settings` are relative to the recipe's file."""

    name: str
    source: str
    settings: dict[str, Any]


def load(file: Path) -> Layer:
    """The settings of the recipe `file`. Raises `PlanError` when it does not have a recipe's shape."""
    try:
        recipe = msgspec.yaml.decode(file.read_bytes(), type=Recipe)
    except (msgspec.DecodeError, OSError) as error:
        raise PlanError(f"recipe {file} cannot be read: {error}") from error
    source = f"recipe {recipe.name}"
    return Layer(source, check(recipe.settings, source, file.parent))


def demo() -> Layer:
    """The bundled demo pair."""
    return load(FOLDER / "demo.yaml")
