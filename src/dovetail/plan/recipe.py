"""Recipes: settings that are known to work, as data files in `recipes/`, with their source and what was measured.

A recipe matches a plan if all its conditions hold (`match`). Several may match; the most specific one is the stronger
layer. A recipe is more specific if it states more conditions. Among recipes with equally many conditions, one that
names a model or a drafter is more specific than one that names an architecture; then the order of names decides. A
recipe that the user names is taken whatever its conditions are.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dovetail.checkpoints import hub
from dovetail.checkpoints.methods import LOOKUPS
from dovetail.errors import PlanError
from dovetail.plan.emit.command import shown
from dovetail.plan.hardware import KINDS, Gpus
from dovetail.plan.layers import Layer
from dovetail.plan.options import BY_NAME, validated
from dovetail.plan.yaml_config import read_yaml

FOLDER = Path(__file__).parent / "recipes"
DEMO = "demo"  # the name of the bundled pair's recipe

_Text = Annotated[str, Meta(min_length=1)]
#: The plan prints it beside every value that comes from the recipe.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
_Names = Annotated[tuple[_Text, ...], Meta(min_length=1)]


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Machine(_Data, frozen=True):
    """Conditions on GPUs: their name contains one of `name`, their compute capability is one of `capability` ("12.0" is
    SM120), and there are at least `count`.
    """

    name: _Names | None = None
    capability: Annotated[tuple[Annotated[str, Meta(pattern=r"^\d+\.\d+$")], ...], Meta(min_length=1)] | None = None
    count: Annotated[int, Meta(ge=1)] | None = None


class Conditions(_Data, frozen=True):
    """What must hold for a recipe to match a plan: one entry of every list, and all of `settings`.

    `model` and `drafter` are hub ids; a downloaded folder of that name matches too.
    """

    model: _Names | None = None
    model_type: _Names | None = None
    architecture: _Names | None = None
    drafter: _Names | None = None
    gpu: Machine | None = None
    settings: dict[str, Any] = {}


class Figure(_Data, frozen=True):
    """One measurement: what was measured, under which conditions and by whom."""

    what: _Text
    value: float
    unit: _Text
    conditions: _Text
    by: _Text


class Variable(_Data, frozen=True):
    """An environment variable and its purpose. Without a value, the user has to set it."""

    why: _Text
    value: str | int | float | None = None


class Recipe(_Data, frozen=True):
    """A recipe file.

    `aliases`: further names. `source`: who made and measured it. `links`: where that is published. `why`: setting ->
    the reason for its value. `example`: a model that it is for, if `match` names none. Paths in `settings` are relative
    to the recipe's file.
    """

    name: _Name
    source: _Text
    settings: dict[str, Any]
    title: _Text = "untitled"
    aliases: tuple[_Name, ...] = ()
    match: Conditions | None = None
    example: _Text | None = None
    links: tuple[_Text, ...] = ()
    why: dict[str, _Text] = {}
    env: dict[str, Variable] = {}
    measured: tuple[Figure, ...] = ()
    notes: tuple[_Text, ...] = ()

    @property
    def model(self) -> str | None:
        """A model that the recipe is for, None if it names none."""
        return self.example or (self.match.model[0] if self.match is not None and self.match.model else None)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafter that the recipe sets, or the drafters that it is for."""
        own = self.settings.get("drafter")
        return (own,) if own is not None else (self.match.drafter or ()) if self.match is not None else ()

    def reason(self, setting: str) -> str:
        """Why the recipe has this setting, or what the setting is."""
        return self.why.get(setting) or BY_NAME[setting].help.partition(" (")[0]


class LeftOut(_Data, frozen=True):
    """What of a model's file is in no recipe, and why."""

    model: _Text
    what: _Text
    why: _Text


class Imported(_Data, frozen=True):
    """A file of recipes made from another project's (`python -m recipe_import`).

    `commit`, `date`: what was read of `repository`, and when that was made. `models`: how many models it has.
    `covered`: each of them that has a speculative setup there -> the recipes for it, here or written by hand.
    """

    repository: _Text
    licence: _Text
    commit: _Text
    date: _Text
    models: int
    covered: dict[str, tuple[_Name, ...]]
    left_out: tuple[LeftOut, ...]
    recipes: tuple[Recipe, ...]


class Facts(NamedTuple):
    """What is known about a plan before recipes are chosen.

    None means that a fact is unknown. A `drafter` of None means that drafting without a drafter was chosen. `mtp`:
    whether the target holds MTP layers.
    """

    model: str | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    drafter: str | UnsetType | None = UNSET
    gpus: Gpus | None = None
    settings: Mapping[str, Any] = {}
    mtp: bool | None = None


class Match(NamedTuple):
    """A recipe that matches a plan, the settings that it adds to it, and how many conditions it states."""

    recipe: Recipe
    layer: Layer
    conditions: int


def conditions_text(match: Conditions | None) -> str:
    """The conditions as a sentence."""
    if match is None:
        return "No model and no drafter is named."
    gpu = match.gpu or Machine()
    lists = (
        ("the model is", match.model),
        ("its family is", match.model_type),
        ("its architecture is", match.architecture),
        ("the drafter is", match.drafter),
        ("GPUs are called", gpu.name),
        ("GPUs have the compute capability", gpu.capability),
    )
    conditions = [f"{what} {' or '.join(names)}" for what, names in lists if names]
    if gpu.count is not None:
        conditions.append(f"there are {gpu.count} GPUs or more" if gpu.count > 1 else "there is a GPU")
    conditions += [f"{name} is {shown(value)}" for name, value in match.settings.items()]
    text = "; ".join(conditions)
    return f"{text[:1].upper()}{text[1:]}."


def read(file: Path) -> Recipe:
    """Read the recipe in `file`. Raises `PlanError` naming the file and what is wrong in it."""
    try:
        recipe = msgspec.convert(read_yaml(file, "recipe"), Recipe)
    except msgspec.ValidationError as error:
        raise PlanError(f"recipe {file} cannot be read: {' '.join(str(error).split())}") from error
    return checked(recipe, f"recipe {file}", file.parent)


def checked(recipe: Recipe, where: str, folder: Path) -> Recipe:
    """The recipe with checked settings; paths start at `folder`. Raises `PlanError`, which begins with `where`."""
    settings, _ = validated(recipe.settings, where, folder)
    validated({"env": {name: variable.value for name, variable in recipe.env.items()}}, where, folder)
    for name in recipe.why:
        if name not in settings:
            raise PlanError(f"{where}: why has a reason for {name!r}, which is not one of its settings")
    if "env" in settings:
        raise PlanError(f"{where}: env is a field of its own, not a setting, and gives each variable a reason")
    conditions = recipe.match.settings if recipe.match else {}
    validated(conditions, f"{where}: match", folder)
    return msgspec.structs.replace(recipe, settings=settings)


def layer(recipe: Recipe) -> Layer:
    """The recipe's settings as a layer of a plan."""
    variables = {name: variable.value for name, variable in recipe.env.items() if variable.value is not None}
    return Layer(f"recipe {recipe.name}", recipe.settings | ({"env": variables} if variables else {}))


def imports(folder: Path = FOLDER) -> tuple[Imported, ...]:
    """The files in `folder` whose recipes were made from another project's, and checked then."""
    return tuple(msgspec.json.decode(file.read_bytes(), type=Imported) for file in sorted(folder.glob("*.json")))


def every() -> tuple[Recipe, ...]:
    """The recipes that come with Dovetail, by name."""
    return every_in(FOLDER)


@functools.cache
def every_in(folder: Path) -> tuple[Recipe, ...]:
    """The recipes in `folder`, by name. It is read once: a plan asks for them several times."""
    by_hand = (read(file) for file in folder.glob("*.yaml"))
    made = (recipe for each in imports(folder) for recipe in each.recipes)
    return tuple(sorted((*by_hand, *made), key=lambda recipe: recipe.name))


def demo() -> Layer:
    """The settings of the bundled demo pair."""
    return layer(read(FOLDER / f"{DEMO}.yaml"))


def called(name: str) -> Recipe:
    """The one recipe that `found` finds by `name`. Raises `PlanError` if there is none, or if there are several."""
    recipes = found(name)
    if len(recipes) > 1:
        raise PlanError(f"several recipes have {name!r} in their names: {', '.join(each.name for each in recipes)}")
    return recipes[0]


def found(name: str) -> tuple[Recipe, ...]:
    """The bundled recipe called `name`; else the recipe in the file `name`; else all with that alias; else all with
    `name` in their own name, an alias, or the id of their model or drafter. Case does not matter.

    Raises `PlanError` with near names if there are none.
    """
    known, text = every(), name.casefold()
    exact = tuple(recipe for recipe in known if recipe.name == text)
    if exact:
        return exact
    file = Path(name)
    if file.suffix in (".yaml", ".yml") or file.is_file():
        return (read(file),)
    recipes = tuple(recipe for recipe in known if text in recipe.aliases) or tuple(
        recipe for recipe in known if text and any(text in each.casefold() for each in _names(recipe))
    )
    if recipes:
        return recipes
    near = difflib.get_close_matches(
        text, {each for recipe in known for each in (recipe.name, *recipe.aliases)}, n=3, cutoff=0.5
    )
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `dovetail recipes` lists them"
    raise PlanError(f"there is no recipe {name!r:.80}, and no file of that name{hint}")


def _names(recipe: Recipe) -> tuple[str, ...]:
    """What the recipe can be found by."""
    ids = () if recipe.match is None else recipe.match.model or ()
    return (recipe.name, *recipe.aliases, *ids, *recipe.drafters)


def named(recipe: Recipe, facts: Facts) -> Layer:
    """The settings of a recipe that the user names. It also sets its model and drafter, if the user names no others."""
    match = recipe.match or Conditions()
    source, values = _layer_for(facts, recipe)
    values = {**match.settings, **values}
    if recipe.model is not None and facts.model is None:
        values.setdefault("target", recipe.model)
    if match.drafter and facts.drafter is UNSET:
        values.setdefault("drafter", match.drafter[0])
    return Layer(source, values)


def matching(facts: Facts, recipes: Iterable[Recipe]) -> list[Match]:
    """The `recipes` whose conditions all hold, the most specific first.

    A recipe's settings of drafting are for its own drafter. They are left out if another drafter or method, or none,
    is already set.
    """
    matches = (_match(recipe, recipe.match, facts) for recipe in recipes)
    return sorted((match for match in matches if match is not None), key=_specificity)


def possible(facts: Facts, recipes: Iterable[Recipe]) -> list[Match]:
    """The `recipes` whose conditions hold, without conditions on GPUs that `facts` cannot decide. Keeps their order."""
    matches = (_match(recipe, _replaced(recipe, gpu=_known(recipe, facts.gpus)), facts) for recipe in recipes)
    return [match for match in matches if match is not None]


def may_run_on(recipe: Recipe, gpus: Gpus | None) -> bool:
    """Whether nothing that is known of `gpus` contradicts the recipe."""
    machine = _known(recipe, gpus)
    return machine is None or all(_checks(Conditions(gpu=machine), Facts(gpus=gpus)))


def near(facts: Facts, recipes: Iterable[Recipe]) -> list[Recipe]:
    """The `recipes` for this model, whatever GPUs and settings they want, and whatever drafter if none is set."""
    ignored: dict[str, Any] = {"gpu": None, "settings": {}} | (
        {} if isinstance(facts.drafter, str) else {"drafter": None}
    )
    return [recipe for recipe in recipes if _match(recipe, _replaced(recipe, **ignored), facts) is not None]


def _match(recipe: Recipe, conditions: Conditions | None, facts: Facts) -> Match | None:
    """The recipe as a match, if it states `conditions` and all of them hold."""
    checks = [] if conditions is None else _checks(conditions, facts)
    return Match(recipe, _layer_for(facts, recipe), len(checks)) if checks and all(checks) else None


def _replaced(recipe: Recipe, **conditions: Any) -> Conditions | None:
    """The recipe's conditions with some of them replaced."""
    return None if recipe.match is None else msgspec.structs.replace(recipe.match, **conditions)


def _known(recipe: Recipe, gpus: Gpus | None) -> Machine | None:
    """The recipe's conditions on GPUs that can be decided for `gpus`."""
    machine = recipe.match.gpu if recipe.match is not None else None
    if machine is None or gpus is None:
        return None
    # Of GPUs that are named by their memory, a kind of another size is ruled out.
    sizes = {kind.size for kind in KINDS if kind.name in (machine.name or ())}
    decided = gpus.gpu.capability is not None or (sizes and gpus.gpu.size not in sizes)
    return machine if decided else Machine(count=machine.count)


def _specificity(match: Match) -> tuple[int, bool, str]:
    """The sort key of a match; the smallest is the most specific."""
    conditions = match.recipe.match or Conditions()
    return (-match.conditions, conditions.model is None and conditions.drafter is None, match.recipe.name)


def _layer_for(facts: Facts, recipe: Recipe) -> Layer:
    """The recipe's settings for a plan with these `facts`, without drafting if the plan drafts in another way."""
    source, values = layer(recipe)
    if facts.drafter is UNSET:
        own, method = recipe.settings.get("method"), facts.settings.get("method", UNSET)
        drafts_alike = method in (UNSET, own) or (own is None and method not in (None, "mtp", *LOOKUPS))
    else:  # numbers of drafts that were measured at a server that ran are for any drafter
        drafts_alike = _is_named(facts.drafter, recipe.drafters) or not (recipe.drafters or "method" in recipe.settings)
    if drafts_alike and not lacks_mtp(facts, recipe):
        return Layer(source, values)
    return Layer(source, {name: value for name, value in values.items() if BY_NAME[name].group != "drafting"})


def lacks_mtp(facts: Facts, recipe: Recipe) -> bool:
    """Whether the recipe drafts with MTP layers that the target does not hold, as many quantized copies do not."""
    return facts.mtp is False and recipe.settings.get("method") == "mtp" and not recipe.drafters


def _checks(match: Conditions, facts: Facts) -> list[bool]:
    """For every condition that `match` states, whether it holds."""
    machine, gpu = match.gpu or Machine(), facts.gpus.gpu if facts.gpus else None
    capability = ".".join(map(str, gpu.capability)) if gpu and gpu.capability else None
    count = facts.gpus.count if facts.gpus else 0
    checks: list[tuple[object, bool]] = [
        (match.model, _is_named(facts.model, match.model or ())),
        (match.drafter, _is_named(facts.drafter, match.drafter or ())),
        (match.architecture, not set(match.architecture or ()).isdisjoint(facts.architectures)),
        (match.model_type, facts.model_type in (match.model_type or ())),
        (machine.capability, capability in (machine.capability or ())),
        (machine.name, gpu is not None and any(name in gpu.name for name in machine.name or ())),
        (machine.count, count >= (machine.count or 0)),
        *((name, facts.settings.get(name, UNSET) == value) for name, value in match.settings.items()),
    ]
    return [holds for condition, holds in checks if condition is not None]


def _is_named(name: object, ids: Iterable[str]) -> bool:
    """Whether `name`, a hub id or a folder, means one of the hub `ids`. A folder does by the last part of its path.

    A folder in the hub's own cache is called `models--ORGANISATION--NAME/snapshots/REVISION`.
    """
    if not isinstance(name, str):
        return False
    cached = re.search(r"models--([^/]+?)--([^/]+)/snapshots/", name)
    name = f"{cached[1]}/{cached[2]}" if cached else name.rstrip("/")
    known = [id_.casefold() for id_ in ids]
    if cached is not None or hub.ID.fullmatch(name):
        return name.casefold() in known
    return name.rpartition("/")[2].casefold() in [id_.rpartition("/")[2] for id_ in known]
