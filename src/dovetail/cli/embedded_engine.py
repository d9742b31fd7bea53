"""The embedded engine as a plan configures it, and the bar that shows how much of its weights is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from dovetail.checkpoints.cache_folder import cache_folder
from dovetail.checkpoints.methods import LOOKUPS
from dovetail.completion import Engine
from dovetail.engine.settings import INSIDE, LOOKUP, EngineSettings
from dovetail.errors import PlanError
from dovetail.plan import Plan
from dovetail.plan.defaults import expected_acceptance

#: How often a thread of the embedded engine looks for work before it sleeps. With libgomp's own number (300,000 or
#: more) two threads beside a busy program on two cores made 13 tokens/s, with this 23; idle, it changed nothing.
_SPINS = "1000"


def embedded_engine(plan: Plan, progress: Callable[[int, int], None] | None = None) -> Engine:
    """The plan's engine, not started yet. `progress` gets the bytes of the weights that are loaded, and all of them.

    Raises `PlanError` if torch is not installed.
    """
    # Imports torch, which takes seconds, so a plan is checked and shown before.
    try:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # before torch is imported
        from dovetail.backends.embedded import EmbeddedEngine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise PlanError(f"the embedded engine needs {error.name}: pip install 'dovetail[engine]'") from error

    target, tokenizer = Path(plan.folders["target"]), Path(plan.folders["tokenizer"])
    return EmbeddedEngine(target, _drafter(plan), engine_settings(plan), tokenizer_path=tokenizer, progress=progress)


def engine_settings(plan: Plan) -> EngineSettings:
    """The plan's settings of the embedded engine. A setting that the plan leaves to the engine has its default."""
    names = {field.name for field in fields(EngineSettings)} & plan.settings.keys()
    values: dict[str, Any] = {name: plan.value(name) for name in names if plan.value(name) is not None}
    if plan.value("gate") == "measured":
        values |= {"cost_folder": cache_folder("costs"), "acceptance": expected_acceptance(plan.settings)}
    return EngineSettings(**values)


def _drafter(plan: Plan) -> Path | str | None:
    """The drafter as `load_models` takes it. A drafter that never drafts would only cost memory."""
    if not plan.value("draft_tokens"):
        return None
    if plan.value("method") in LOOKUPS:
        return LOOKUP
    return Path(plan.folders["drafter"]) if "drafter" in plan.folders else INSIDE


class LoadingBar:
    """A bar on a terminal that shows how much of the weights is loaded. Elsewhere it shows nothing."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("loading"), BarColumn(), DownloadColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("loading", total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are loaded."""
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
