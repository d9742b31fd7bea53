"""API keys, which are read from files because a command line is visible to every user of the machine."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import PlanError
from dovetail.plan import Plan


def read_key(plan: Plan, setting: str) -> str | None:
    """The key in the file that the setting names; None if it names no file. Raises `PlanError`."""
    path = plan.value(setting)
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{setting} {path} cannot be read as ASCII text") from error
    if not key or len(key.split()) > 1:
        raise PlanError(f"{setting} {path} must hold one key, on one line")
    return key
