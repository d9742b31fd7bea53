"""Recipes: settings known to work, as data files in `recipes/`, each saying where it comes from and what was measured.

Which ones go for a plan: all whose every condition holds (`match`), the most specific first. The more conditions a
recipe states, the more specific it is; among those that state as many, one that names a model or a drafter goes before
one that names an architecture, and then names decide. Their settings lie over one another in that order, so where
recipes differ the most specific one wins. One that somebody names goes for the plan whatever it is for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dovetail.errors import PlanError
from dovetail.plan import hub
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Layer
from dovetail.plan.methods import LOOKUPS
from dovetail.plan.options import BY_NAME, validated
from dovetail.plan.yaml_config import read_yaml

FOLDER = Path(__file__).parent / "recipes"
DEMO = "demo"  # of the bundled pair

_Text = Annotated[str, Meta(min_length=1)]
#: Goes into every line that says where a value is from.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
_Names = Annotated[tuple[_Text, ...], Meta(min_length=1)]


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Machine(_Data, frozen=True):
    """GPUs: one of these names in theirs, one of these compute capabilities ("12.0" is SM120), at least so many."""

    name: _Names | None = None
    capability: Annotated[tuple[Annotated[str, Meta(pattern=r"^\d+\.\d+$")], ...], Meta(min_length=1)] | None = None
    count: Annotated[int, Meta(ge=1)] | None = None


class Conditions(_Data, frozen=True):
    """What must hold for a recipe to go for a plan: of each list one, of `settings` all, as said so far.

    `model` and `drafter` are hub ids, which a downloaded folder of that name fits too.
    """

    model: _Names | None = None
    model_type: _Names | None = None
    architecture: _Names | None = None
    drafter: _Names | None = None
    gpu: Machine | None = None
    settings: dict[str, Any] = {}


class Figure(_Data, frozen=True):
    """One thing that somebody measured."""

    what: _Text
    value: float
    unit: _Text
    conditions: _Text
    by: _Text


class Variable(_Data, frozen=True):
    """An environment variable and what it is for. Without a value, it is the user's to give."""

    why: _Text
    value: str | int | float | None = None


class Recipe(_Data, frozen=True):
    """`source` says who made and measured it, `links` where to read that; `why` gives reasons for settings.

    `example` is a model that it is for, where `match` names none. `measured` is empty where nothing is known. Paths in
    `settings` are relative to the recipe's file.
    """

    name: _Name
    source: _Text
    settings: dict[str, Any]
    title: _Text = "untitled"
    match: Conditions | None = None
    example: _Text | None = None
    links: tuple[_Text, ...] = ()
    why: dict[str, _Text] = {}
    env: dict[str, Variable] = {}
    measured: tuple[Figure, ...] = ()
    notes: tuple[_Text, ...] = ()

    @property
    def model(self) -> str | None:
        """A model that it is for, None if it names none."""
        return self.example or (self.match.model[0] if self.match is not None and self.match.model else None)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafter that it brings, or those that it is for."""
        own = self.settings.get("drafter")
        return (own,) if own is not None else (self.match.drafter or ()) if self.match is not None else ()

    def reason(self, setting: str) -> str:
        """Why it has this setting, or what that is."""
        return self.why.get(setting) or BY_NAME[setting].help.partition(" (")[0]


class Facts(NamedTuple):
    """What is known of a plan so far. None is "not known"; a `drafter` None was said, and means none."""

    model: str | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    drafter: str | UnsetType | None = UNSET
    gpus: Gpus | None = None
    settings: Mapping[str, Any] = {}


class Match(NamedTuple):
    """A recipe that goes for a plan, what it says of it, and the conditions that held, in words."""

    recipe: Recipe
    layer: Layer
    held: tuple[str, ...]


def read(file: Path) -> Recipe:
    """The recipe in `file`. Raises `PlanError`, naming the file, when it does not have a recipe's shape."""
    try:
        recipe = msgspec.convert(read_yaml(file, "recipe"), Recipe)
    except msgspec.ValidationError as error:
        raise PlanError(f"recipe {file} cannot be read: {' '.join(str(error).split())}") from error
    where = f"recipe {file}"
    said, _ = validated(recipe.settings, where, file.parent)
    validated({"env": {name: variable.value for name, variable in recipe.env.items()}}, where, file.parent)
    for name in recipe.why:
        if name not in said:
            raise PlanError(f"{where}: why has a reason for {name!r}, which is not among its settings")
    if "env" in said:
        raise PlanError(f"{where}: env is a field of its own, in which each variable says what it is for")
    conditions = recipe.match.settings if recipe.match else {}
    validated(conditions, f"{where}: match", file.parent)
    return msgspec.structs.replace(recipe, settings=said)


def load(file: Path) -> Layer:
    """The settings of the recipe in `file`. Raises `PlanError` when it does not have a recipe's shape."""
    return layer(read(file))


def layer(recipe: Recipe) -> Layer:
    """What the recipe says, as a plan's layer."""
    variables = {name: variable.value for name, variable in recipe.env.items() if variable.value is not None}
    return Layer(f"recipe {recipe.name}", recipe.settings | ({"env": variables} if variables else {}))


def every() -> tuple[Recipe, ...]:
    """The recipes that come with Dovetail, by name."""
    return tuple(read(file) for file in sorted(FOLDER.glob("*.yaml")))


def demo() -> Layer:
    """The bundled demo pair."""
    return load(FOLDER / f"{DEMO}.yaml")


def called(name: str) -> Recipe:
    """The recipe that comes with Dovetail under this name, or the one in the file `name`. Raises `PlanError`."""
    known = {recipe.name: recipe for recipe in every()}
    if name in known:
        return known[name]
    file = Path(name)
    if file.suffix in (".yaml", ".yml") or file.is_file():
        return read(file)
    near = difflib.get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}"
    raise PlanError(f"there is no recipe {name!r}, and no file of that name{hint}")


def named(recipe: Recipe, facts: Facts) -> Layer:
    """What a recipe says that somebody names: also the model and the drafter that it is for, if nobody says others."""
    match = recipe.match or Conditions()
    source, values = _for(facts, recipe)
    values = {**match.settings, **values}
    if recipe.model is not None and facts.model is None:
        values.setdefault("target", recipe.model)
    if match.drafter and facts.drafter is UNSET:
        values.setdefault("drafter", match.drafter[0])
    return Layer(source, values)


def matching(facts: Facts, recipes: Iterable[Recipe]) -> list[Match]:
    """The `recipes` that go for what is known, the most specific first.

    Where another drafter than a recipe's was named, another method, or none, it says nothing about drafting: that was
    for its own.
    """
    found = []
    for recipe in recipes:
        held = None if recipe.match is None else _held(recipe.match, facts)
        if held is not None:
            found.append((recipe, held))
    found.sort(key=lambda pair: _specificity(*pair))
    return [Match(recipe, _for(facts, recipe), held) for recipe, held in found]


def possible(facts: Facts, recipes: Iterable[Recipe]) -> list[Match]:
    """As `matching`, but where the kind of the GPUs is not known, or that there are any, it may be a recipe's."""
    return [
        Match(recipe, _for(facts, recipe), held)
        for recipe in recipes
        if recipe.match is not None
        and (held := _held(msgspec.structs.replace(recipe.match, gpu=_known(recipe.match.gpu, facts.gpus)), facts))
    ]


def _known(machine: Machine | None, gpus: Gpus | None) -> Machine | None:
    """Of a machine's conditions those that can be told of `gpus`."""
    if machine is None or gpus is None:
        return None
    return machine if gpus.gpu.capability is not None else Machine(count=machine.count)


def may_run_on(recipe: Recipe, gpus: Gpus | None) -> bool:
    """Whether nothing that is known of the GPUs speaks against the recipe."""
    machine = _known(recipe.match.gpu if recipe.match else None, gpus)
    return machine is None or _held(Conditions(gpu=machine), Facts(gpus=gpus)) is not None


def near(facts: Facts, recipes: Iterable[Recipe]) -> list[Recipe]:
    """The `recipes` for this model, whatever they say of GPUs, settings and, if none was named, of the drafter."""
    found = []
    for recipe in recipes:
        if recipe.match is not None:
            drafter = recipe.match.drafter if isinstance(facts.drafter, str) else None
            match = msgspec.structs.replace(recipe.match, gpu=None, settings={}, drafter=drafter)
            if _held(match, facts) is not None:
                found.append(recipe)
    return found


def _specificity(recipe: Recipe, held: tuple[str, ...]) -> tuple[int, bool, str]:
    """The smaller, the more specific."""
    assert recipe.match is not None
    return (-len(held), recipe.match.model is None and recipe.match.drafter is None, recipe.name)


def _for(facts: Facts, recipe: Recipe) -> Layer:
    """What the recipe says of a plan in which so much is said: nothing of drafting, if that is done in another way."""
    source, values = layer(recipe)
    if facts.drafter is UNSET:
        own, said = recipe.settings.get("method"), facts.settings.get("method", UNSET)
        its_way = said is UNSET or said == own or (own is None and said not in (None, "mtp", *LOOKUPS))
    else:
        its_way = _is_called(facts.drafter, recipe.drafters)
    if its_way:
        return Layer(source, values)
    return Layer(source, {name: value for name, value in values.items() if BY_NAME[name].group != "drafting"})


def _held(match: Conditions, facts: Facts) -> tuple[str, ...] | None:
    """The conditions in words, None if one of them does not hold."""
    machine = match.gpu or Machine()
    gpu = facts.gpus.gpu if facts.gpus else None
    capability = ".".join(map(str, gpu.capability)) if gpu and gpu.capability else None
    count = facts.gpus.count if facts.gpus else 0
    kinds = (match.model_type, facts.model_type), (machine.capability, capability)
    checks: list[tuple[object, bool, str]] = [
        (match.model, _is_called(facts.model, match.model or ()), f"model {facts.model}"),
        (match.drafter, _is_called(facts.drafter, match.drafter or ()), f"drafter {facts.drafter}"),
        (
            match.architecture,
            not set(match.architecture or ()).isdisjoint(facts.architectures),
            f"architecture {', '.join(facts.architectures)}",
        ),
        *((wanted, is_ in (wanted or ()), str(is_)) for wanted, is_ in kinds),
        (machine.name, gpu is not None and any(n in gpu.name for n in machine.name or ()), f"GPU {gpu and gpu.name}"),
        (machine.count, count >= (machine.count or 0), f"{count} GPUs"),
        *(
            (True, name in facts.settings and facts.settings[name] == value, f"{name} {value}")
            for name, value in match.settings.items()
        ),
    ]
    stated = [(holds, words) for wanted, holds, words in checks if wanted is not None]
    return tuple(words for _, words in stated) if stated and all(holds for holds, _ in stated) else None


def _is_called(said: object, ids: Iterable[str]) -> bool:
    """Whether `said`, an id or a folder, is one of these ids: by all of it, or by the name of the folder.

    A snapshot in the hub's own cache is called `models--ORGANISATION--NAME/snapshots/REVISION`.
    """
    if not isinstance(said, str):
        return False
    cached = re.search(r"models--([^/]+?)--([^/]+)/snapshots/", said)
    name = f"{cached[1]}/{cached[2]}" if cached else said.rstrip("/")
    is_id = cached is not None or hub.ID.fullmatch(name) is not None
    known = [id_.casefold() for id_ in ids]
    if is_id:
        return name.casefold() in known
    return name.rpartition("/")[2].casefold() in [id_.rpartition("/")[2] for id_ in known]
