"""`dovetail plan`: what `serve` would run, as a table, as JSON, or as another engine's command."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from dovetail.cli.plan_report import show
from dovetail.errors import PlanError
from dovetail.plan import Plan, resolve
from dovetail.plan.drafter_support import cannot_run
from dovetail.plan.emit import emitted
from dovetail.plan.emit.command import comment

_ENGINES = {"k8s": "vllm"}  # that of a form, where it is not called like it
_NOT_SETTINGS = {"command", "model", "config", "recipe", "json", "emit", "all"}


def run(arguments: argparse.Namespace) -> None:
    # A command for another engine is for a plan on one, where nobody says which.
    engine = _ENGINES.get(arguments.emit, arguments.emit)
    plan = resolved(arguments, engine=engine)
    if arguments.emit:
        print(_emitted(plan, arguments.emit), end="")
    elif arguments.json:
        print(msgspec.json.format(msgspec.json.encode(plan.data()), indent=2).decode())
    else:
        show(plan, Console(highlight=False), everything=arguments.all)


def resolved(arguments: argparse.Namespace, *, engine: str | None = None) -> Plan:
    """The plan that the arguments of `serve` or `plan` ask for; on `engine` where nobody says one."""
    options = {name: value for name, value in vars(arguments).items() if name not in _NOT_SETTINGS}
    if arguments.config == "":
        raise PlanError("--config is empty: name a file, or leave it out")
    config = None if arguments.config is None else Path(arguments.config)
    return resolve(arguments.model, options, config=config, recipe=arguments.recipe, engine=engine)


def _emitted(plan: Plan, form: str) -> str:
    """The plan in that form, its warnings as comments. Raises `PlanError` for a drafter that the engine cannot run."""
    why = None if plan.drafter is None else cannot_run(plan.drafter, _ENGINES.get(form, form))
    if plan.drafter is not None and why is not None:
        raise PlanError(f"--emit {form} with {plan.drafter.path}: {why}. Another drafter, or --drafter none")
    warnings = [line for each in plan.told("warning") for line in comment(f"warning: {each.message}")]
    return "".join(f"{line}\n" for line in warnings) + emitted(plan.carried, form)
