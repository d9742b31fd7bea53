"""Writes the page of recipes: `python -m dovetail.plan.cookbook > docs/recipes.md` (make recipes)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from dovetail.plan.emit import emitted, vllm
from dovetail.plan.emit.command import shown
from dovetail.plan.layers import Layer, overlay
from dovetail.plan.recipe import FOLDER, Conditions, Figure, Recipe, conditions_text, every, layer

_PACKAGE = str(FOLDER.parent.parent)
_HEAD = """\
# Recipes

A recipe is a set of settings that is known to work, with its source and with what was measured, by whom. Dovetail uses
a recipe by itself if it matches: `dovetail plan MODEL` shows `recipe NAME` beside every value that comes from one. The
command line and the config file are always stronger.

A recipe matches if all its conditions hold. If several match and they differ, the most specific one wins: the one with
the most conditions; among equals, one that names a model or a drafter before one that names an architecture, and then
the first by name. If you choose another drafter than the recipe's, or none, the recipe's settings of drafting are
ignored. No recipe opens a server to other machines: Dovetail listens on 127.0.0.1 unless you set `--host`.

`make recipes` writes this page from the files in `src/dovetail/plan/recipes/`.
"""


def page(recipes: Iterable[Recipe]) -> str:
    """The page, in Markdown."""
    recipes = tuple(recipes)
    listed = "\n".join(f"- [{recipe.title}](#{_anchor(recipe.title)})" for recipe in recipes)
    return "\n\n".join([_HEAD.rstrip(), listed, *(_section(recipe) for recipe in recipes)]) + "\n"


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    allowed = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(allowed).replace(" ", "-")


def _section(recipe: Recipe) -> str:
    rows = [(f"`{name}`", _code(v.value, "set by you"), v.why) for name, v in recipe.env.items()]
    blocks = [
        f"## {recipe.title}",
        f"**Source** of `{recipe.name}`: {recipe.source}.",
        "\n".join(f"- {_link(link)}" for link in recipe.links),
        f"**When.** {conditions_text(recipe.match, markdown=True)}",
        f"```\n{_command(recipe)}\n```",
        _table(("setting", "value", "why"), _settings(recipe)),
        _table(("environment variable", "value", "what it is for"), rows) if rows else "",
        "**Measured**" if recipe.measured else "**Not measured** by the source.",
        _measured(recipe.measured) if recipe.measured else "",
        "**To know**" if recipe.notes else "",
        "\n".join(f"- {note}" for note in recipe.notes),
    ]
    if recipe.settings.get("engine") == "vllm":
        heading = f"<details><summary>As a command for vLLM {vllm.VERSIONS[-1]}</summary>"
        blocks += [heading, f"```sh\n{_emitted(recipe)}```", "</details>"]
    return "\n\n".join(block for block in blocks if block)


def _link(link: str) -> str:
    return f"<{link}>" if "://" in link else f"[{link}](../{link})"


def _command(recipe: Recipe) -> str:
    words = ["dovetail serve"]
    match = recipe.match
    if match is not None:
        words.append(recipe.model or "MODEL")
        words += [f"--drafter {match.drafter[0]}"] if match.drafter else []
        words += [f"--{name.replace('_', '-')} {shown(value)}" for name, value in match.settings.items()]
    return " ".join(words)


def _settings(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    for name, value in recipe.settings.items():
        if isinstance(value, str) and value.startswith(_PACKAGE):
            value = f"dovetail{value.removeprefix(_PACKAGE)}"  # wherever Dovetail is installed
        yield f"`{name}`", _code(value, "none"), recipe.reason(name)


def _code(value: object, otherwise: str) -> str:
    return otherwise if value is None else f"`{shown(value)}`"


def _measured(figures: Iterable[Figure]) -> str:
    rows = [(f.what, f"{f.value:,.10g} {f.unit}", f.conditions, f.by) for f in figures]
    return _table(("what", "figure", "conditions", "by"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _emitted(recipe: Recipe) -> str:
    """The command of the recipe alone, for a model that it is for."""
    match = recipe.match or Conditions()
    model = {"target": recipe.model or "MODEL"}
    if match.drafter and "drafter" not in recipe.settings:
        model["drafter"] = match.drafter[0]
    return emitted(overlay([layer(recipe), Layer("recipe", model)]), "vllm")


if __name__ == "__main__":
    sys.stdout.write(page(every()))
