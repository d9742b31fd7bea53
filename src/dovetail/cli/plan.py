"""`dovetail plan`: what `serve` would run, as a table or as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from dovetail.cli.screen import plan_table
from dovetail.plan import Plan, resolve

_NOT_SETTINGS = {"command", "model", "config", "json"}


def run(arguments: argparse.Namespace) -> None:
    plan = resolved(arguments)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(plan), indent=2).decode())
    else:
        Console().print(plan_table(plan))


def resolved(arguments: argparse.Namespace) -> Plan:
    """The plan that the arguments of `serve` or `plan` ask for."""
    options = {name: value for name, value in vars(arguments).items() if name not in _NOT_SETTINGS}
    return resolve(arguments.model, options, config=Path(arguments.config) if arguments.config else None)
