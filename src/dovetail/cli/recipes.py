"""`dovetail recipes`: settings that are known to work, what they are for, and what was measured with them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from dovetail.cli.files import print_json
from dovetail.cli.terminal import labelled, visible
from dovetail.plan.emit.command import shown
from dovetail.plan.recipe import Recipe, conditions_text, every, found


def run(arguments: argparse.Namespace) -> None:
    recipes = every() if arguments.name is None else found(arguments.name)
    whole = arguments.name is not None and len(recipes) == 1
    if arguments.json:
        print_json(recipes[0] if whole else recipes)
        return
    console = Console(highlight=False)
    if whole:
        _show(recipes[0], console)
        return
    for i, recipe in enumerate(recipes):
        console.print(Text(("\n" if i else "") + recipe.name, "bold"))
        labelled(console, _listed(recipe), indent=2)


def _listed(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield "", recipe.title
    yield "for", conditions_text(recipe.match)
    yield "format", _format(recipe)
    measured = [f"{each.what} {each.value:,g} {each.unit}" for each in recipe.measured[:1]]
    rest = len(recipe.measured) - 1
    more = f", and {rest} more figure{'s' if rest > 1 else ''}" if rest > 0 else ""
    yield "measured", f"{measured[0]}{more}" if measured else "nothing"


def _format(recipe: Recipe) -> str:
    named: str | None = recipe.settings.get("format")
    return named or "no format (detected from the checkpoint, else its chat template)"


def _show(recipe: Recipe, console: Console) -> None:
    console.print(Text(visible(recipe.title), "bold"))
    rows = [("name", recipe.name), ("for", conditions_text(recipe.match)), ("format", _format(recipe))]
    if recipe.aliases:
        rows.insert(1, ("also", ", ".join(recipe.aliases)))
    labelled(console, [*rows, ("from", f"{recipe.source}. {'; '.join(recipe.links)}")])
    _section(console, "settings")
    for name, value in recipe.settings.items():
        _reasoned(console, name, _value(value, "none"), recipe.reason(name))
    if recipe.env:
        _section(console, "environment")
    for name, variable in recipe.env.items():
        _reasoned(console, name, _value(variable.value, "yours to give"), variable.why)
    _section(console, "measured" if recipe.measured else "measured: nothing")
    for by, figures in groupby(recipe.measured, key=lambda each: each.by):
        labelled(console, [("by", by)])
        values = ((f"{each.value:,g} {each.unit}", f"{each.what}, {each.conditions}") for each in figures)
        labelled(console, values, indent=2)
    if recipe.notes:
        _section(console, "to know")
        labelled(console, (("-", note) for note in recipe.notes))


def _value(value: object, unset: str) -> str:
    return unset if value is None else shown(value)


def _reasoned(console: Console, name: str, value: str, reason: str) -> None:
    labelled(console, [(name, value)], text="cyan", indent=2)
    labelled(console, [("", reason)], text="dim", indent=6)


def _section(console: Console, heading: str) -> None:
    console.print()
    console.print(Text(heading, "bold"))
