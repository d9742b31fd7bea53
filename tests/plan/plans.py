"""Parts of a plan that tests compare."""

from __future__ import annotations

from typing import Any

from dovetail.plan import Plan


def sources(plan: Plan) -> dict[str, str]:
    return {name: setting.source for name, setting in plan.settings.items()}


def messages(plan: Plan, level: Any) -> str:
    """The messages of one level, a line each."""
    return "\n".join(f"{each.setting}: {each.message}" for each in plan.advice_of(level))
