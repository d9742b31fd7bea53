"""What a recipe is for, in words."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.plan.emit.command import shown
from dovetail.plan.recipe import Conditions, Machine


def when(match: Conditions | None) -> str:
    """The conditions as a sentence, names in backticks."""
    if match is None:
        return "No model and no drafter is named."
    gpu = match.gpu or Machine()
    conditions = [
        _one_of("the model is", match.model),
        _one_of("its family is", match.model_type),
        _one_of("its architecture is", match.architecture),
        _one_of("the drafter is", match.drafter),
        _one_of("GPUs are called", gpu.name),
        _one_of("GPUs have the compute capability", gpu.capability),
        None if gpu.count is None else f"there are {gpu.count} GPUs or more" if gpu.count > 1 else "there is a GPU",
        *(f"`{name}` is {shown(value)}" for name, value in match.settings.items()),
    ]
    said = "; ".join(condition for condition in conditions if condition)
    return f"{said[:1].upper()}{said[1:]}."


def when_plainly(match: Conditions | None) -> str:
    """The same as plain text."""
    return when(match).replace("`", "")


def _one_of(what: str, names: Iterable[str] | None) -> str | None:
    return None if not names else f"{what} {' or '.join(f'`{name}`' for name in names)}"
