"""`dovetail plan`: what `serve` would run, as a table, as JSON, or as another engine's command."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from dovetail.cli.files import print_json
from dovetail.cli.plan_report import show
from dovetail.errors import PlanError
from dovetail.plan import Plan, resolve
from dovetail.plan.drafter_support import cannot_run
from dovetail.plan.emit import emitted
from dovetail.plan.emit.command import comment
from dovetail.plan.options import BY_NAME

_ENGINES = {"helm": "vllm"}  # form of --emit -> its engine, where the names differ


def run(arguments: argparse.Namespace) -> None:
    # Without --engine, --emit plans for the engine whose command it prints.
    engine = _ENGINES.get(arguments.emit, arguments.emit)
    plan = resolved(arguments, engine=engine)
    if arguments.emit:
        print(_emitted(plan, arguments.emit), end="")
    elif arguments.json:
        print_json(plan.data())
    else:
        show(plan, Console(highlight=False), everything=arguments.all)


def resolved(arguments: argparse.Namespace, *, engine: str | None = None) -> Plan:
    """The plan for the arguments of `serve` or `plan`. `engine`: the engine if no layer of the plan sets one."""
    options = {name: value for name, value in vars(arguments).items() if name in BY_NAME}
    if arguments.config == "":
        raise PlanError("--config is empty: name a file, or leave it out")
    config = None if arguments.config is None else Path(arguments.config)
    return resolve(arguments.model, options, config=config, recipe=arguments.recipe, engine=engine)


def _emitted(plan: Plan, form: str) -> str:
    """The plan as the command or values `form`, with its warnings as comments.

    Raises `PlanError` for a drafter that the engine cannot run.
    """
    reason = None if plan.drafter is None else cannot_run(plan.drafter, _ENGINES.get(form, form))
    if plan.drafter is not None and reason is not None:
        raise PlanError(f"--emit {form} with {plan.drafter.path}: {reason}. Another drafter, or --drafter none")
    warnings = [line for each in plan.advice_of("warning") for line in comment(f"warning: {each.message}")]
    return "".join(f"{line}\n" for line in warnings) + emitted(plan.command_settings, form)
