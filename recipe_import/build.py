"""Makes recipes of a checkout and its review."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from msgspec import UNSET

from dovetail.errors import PlanError
from dovetail.plan.options import validated
from dovetail.plan.recipe import FOLDER, Conditions, Figure, Imported, LeftOut, Machine, Recipe, Variable, checked
from recipe_import import arguments
from recipe_import.arguments import Translation
from recipe_import.checkout import SPECULATION, Checkout, Feature, Mode, ModelFile, parsed
from recipe_import.review import ModelReview, Review

REPOSITORY = "https://github.com/vllm-project/recipes"
LICENCE = "Apache-2.0"
#: The source's names of generations of GPUs -> the condition on them.
_GPUS: Mapping[str, Machine] = {
    "hopper": Machine(capability=("9.0",), count=1),
    "blackwell": Machine(capability=("10.0", "10.3", "12.0", "12.1"), count=1),
    "amd": Machine(name=("MI300X", "MI325X", "MI355X"), count=1),
}
_ANY = Machine(count=1)
_DEFAULT = "default"  # the checkpoint that every model's file begins with
_METHODS = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
_WHY = {
    "engine": "the source is for vLLM",
    "format": "by the parsers that the source names",
    "speculate_below_context": "the longest sequence that the source drafts for",
    "engine_args": "as the source has them",
}


class _Entry(NamedTuple):
    """A model's file with what was checked of it. `name`: its path below models/ without .yaml."""

    name: str
    file: ModelFile
    reviewed: ModelReview
    methods: Mapping[str, str]
    format: str | None
    checkout: Checkout

    @property
    def feature(self) -> Feature:
        assert self.file.speculation is not None
        return self.file.speculation

    @property
    def modes(self) -> Mapping[str, Mode]:
        """Key -> mode; the key is "" if there is only one."""
        return self.feature.modes or {"": self.feature}

    def ids(self, variants: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.file.variants[name].model_id or self.file.model.model_id for name in variants))

    def translated(self, variant: str, drafting: Iterable[str]) -> Translation:
        words = (*self.file.model.base_args, *self.file.variants[variant].extra_args, *drafting)
        return arguments.translated(words, self.ids(self.file.variants), self.methods)

    def env(self, variant: str) -> dict[str, str]:
        return {**(self.file.model.base_env or {}), **self.file.variants[variant].extra_env}

    def runs_on(self, variant: str, generation: str) -> bool:
        """Whether the checkpoint may run on GPUs of this generation. NVFP4 is for Blackwell, unless more is said."""
        checkpoint, generations = self.file.variants[variant], self.checkout.generations
        if checkpoint.supported_hardware is not None:
            return generation in [generations.get(gpu) for gpu in checkpoint.supported_hardware]
        return "nvfp4" not in checkpoint.precision or bool(checkpoint.precision_hardware) or generation == "blackwell"

    def chosen(self, variant: str) -> str:
        """The mode of a checkpoint unless another is asked for: its own, else the feature's, else its first."""
        available = [key for key, mode in self.modes.items() if mode.variants is None or variant in mode.variants]
        defaults = (self.file.variants[variant].default_modes.get(SPECULATION), self.feature.default_mode)
        return next((key for key in defaults if key in available), available[0])


class _Setup(NamedTuple):
    """One way to draft, for the checkpoints that have the same settings with it.

    `chosen`: whether the source drafts so unless another mode is asked for. `base`: the name of its recipe.
    """

    key: str
    mode: Mode
    variants: tuple[str, ...]
    chosen: bool
    translation: Translation
    base: str


def imported(checkout: Checkout, review: Review) -> Imported:
    """The recipes of all models with a speculative setup, and what is left out of them and why.

    Raises `ValueError` for a model's file that cannot be read, and for a review of what the checkout does not have.
    """
    unknown = sorted(review.models.keys() - checkout.models.keys())
    if unknown:
        raise ValueError(f"reviewed, but not in the checkout: {', '.join(unknown)}")
    recipes, left_out, covered = list[Recipe](), list[LeftOut](), dict[str, tuple[str, ...]]()
    for name, text in checkout.models.items():
        file, reviewed = parsed(name, text), review.models.get(name, ModelReview())
        if file.speculation is None:
            continue
        _check_found(name, text, reviewed)
        made = list[Recipe]()
        if not reviewed.by_hand:
            try:
                format_ = review.format(*_parsers(file)) if reviewed.format is UNSET else reviewed.format
            except ValueError as error:
                left_out.append(LeftOut(model=name, what="everything", why=str(error)))
            else:
                made = list(_recipes(_Entry(name, file, reviewed, review.methods, format_, checkout), left_out))
        recipes += made
        covered[name] = (*(recipe.name for recipe in made), *reviewed.by_hand)
    names = [recipe.name for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several recipes are called {', '.join(twice)}: name them in the review")
    return Imported(
        repository=REPOSITORY,
        licence=LICENCE,
        commit=checkout.commit,
        date=checkout.date.isoformat(),
        models=len(checkout.models),
        covered=covered,
        left_out=tuple(dict.fromkeys(left_out)),
        recipes=tuple(sorted(recipes, key=lambda recipe: recipe.name)),
    )


def _check_found(name: str, text: str, reviewed: ModelReview) -> None:
    for figure in reviewed.measured:
        if figure.found is not None and figure.found not in text:
            raise ValueError(f"models/{name}.yaml does not have {figure.found!r}, which the review has from there")


def _parsers(file: ModelFile) -> tuple[str | None, str | None]:
    """vLLM's parsers of calls and reasoning that the file names."""

    def named(feature: str, flag: str) -> str | None:
        words = (file.features or {}).get(feature, Feature()).args
        return words[words.index(flag) + 1] if flag in words else None

    return named("tool_calling", "--tool-call-parser"), named("reasoning", "--reasoning-parser")


def _recipes(entry: _Entry, left_out: list[LeftOut]) -> Iterator[Recipe]:
    for setup in _setups(entry, left_out):
        yield _recipe(entry, setup, setup.base, _ANY, setup.translation.settings)
        for gpus, override in setup.mode.hardware_overrides.items():
            what = f"{setup.base} on {gpus}"
            if gpus not in _GPUS:
                left_out.append(LeftOut(model=entry.name, what=what, why="no such GPU in a plan"))
            elif any(entry.runs_on(variant, gpus) for variant in setup.variants):
                changed = _translated(entry, setup.variants[0], override.args, what, left_out)
                if changed is not None and changed.settings != setup.translation.settings:
                    yield _recipe(entry, setup, f"{setup.base}-{gpus}", _GPUS[gpus], changed.settings)


def _setups(entry: _Entry, left_out: list[LeftOut]) -> Iterator[_Setup]:
    """Every mode, once for each group of checkpoints."""
    base = entry.reviewed.name or entry.name.rpartition("/")[2].lower()
    kept = [key for key in entry.modes if key not in entry.reviewed.left_out]
    for key, why in entry.reviewed.left_out.items():
        left_out.append(LeftOut(model=entry.name, what=key or "drafting", why=why))
    for key in kept:
        groups = _groups(entry, key, left_out)
        for (chosen, translation, _), variants in groups:
            first = [] if _DEFAULT in variants or len(groups) == 1 else [variants[0]]
            name = "-".join([base, *([key] if len(kept) > 1 else []), *first]).replace("_", "-")
            yield _Setup(key, entry.modes[key], tuple(variants), chosen, translation, name)


#: Whether the mode is the one that the source chooses, its settings and its environment variables.
_Group: TypeAlias = tuple[bool, Translation, dict[str, str]]


def _groups(entry: _Entry, key: str, left_out: list[LeftOut]) -> list[tuple[_Group, list[str]]]:
    """The checkpoints that have the mode, by what is set for them."""
    groups, ids = list[tuple[_Group, list[str]]](), dict[str, str]()
    for variant in entry.modes[key].variants or entry.file.variants:
        what = f"{key or 'drafting'} of {variant}"
        if variant not in entry.file.variants:
            left_out.append(LeftOut(model=entry.name, what=what, why="the file has no such checkpoint"))
            continue
        (own,) = entry.ids([variant])
        if ids.setdefault(own, variant) != variant:
            why = f"the same checkpoint as {ids[own]}, of which a plan could not tell it"
            left_out.append(LeftOut(model=entry.name, what=what, why=why))
            continue
        translation = _translated(entry, variant, entry.modes[key].args, what, left_out)
        if translation is None:
            continue
        group = (entry.chosen(variant) == key, translation, entry.env(variant))
        same = next((variants for known, variants in groups if known == group), None)
        if same is None:
            groups.append((group, [variant]))
        else:
            same.append(variant)
    return groups


def _translated(
    entry: _Entry, variant: str, drafting: Iterable[str], what: str, left_out: list[LeftOut]
) -> Translation | None:
    """The arguments as settings; None if they cannot become a recipe, and then `what` is listed with the reason."""
    try:
        translation = entry.translated(variant, drafting)
        validated(translation.settings, "settings", FOLDER)
    except (ValueError, PlanError) as error:
        left_out.append(LeftOut(model=entry.name, what=what, why=str(error)))
        return None
    left_out += [LeftOut(model=entry.name, what=each, why=why) for each, why in translation.left_out.items()]
    return translation


def _recipe(entry: _Entry, setup: _Setup, name: str, gpus: Machine, settings: Mapping[str, Any]) -> Recipe:
    ids, method, drafter = entry.ids(setup.variants), settings["method"], settings.get("drafter")
    if not setup.chosen and drafter is not None:  # for those who name this drafter
        settings = {key: value for key, value in settings.items() if key != "drafter"}
    all_settings = {"engine": "vllm", **({"format": entry.format} if entry.format else {}), **settings}
    hubs = (f"https://huggingface.co/{each}" for each in (ids[0], drafter) if each is not None)
    recipe = Recipe(
        name=name,
        title=_title(ids[0], method, drafter, settings["draft_tokens"], gpus),
        aliases=entry.reviewed.aliases,
        match=Conditions(
            model=ids,
            gpu=gpus,
            drafter=(drafter,) if drafter is not None and not setup.chosen else None,
            settings={} if setup.chosen or drafter is not None else {"method": method},
        ),
        source=f"vLLM's recipes (vllm-project/recipes, {LICENCE}), as revised on {entry.file.meta.date_updated}",
        links=(f"{REPOSITORY}/blob/{entry.checkout.commit}/models/{entry.name}.yaml", *hubs, *entry.reviewed.links),
        settings=all_settings,
        why={key: why for key, why in _WHY.items() if key in all_settings},
        env={
            key: Variable(value=value, why="as the source has it")
            for key, value in entry.env(setup.variants[0]).items()
        },
        measured=tuple(_figures(entry.reviewed, setup)) if gpus == _ANY else (),
        notes=tuple(_notes(entry, setup)),
    )
    return checked(recipe, f"recipe {name}", FOLDER)


def _title(model: str, method: str, drafter: str | None, tokens: int, gpus: Machine) -> str:
    whose = f"by {drafter}" if drafter else "inside the checkpoint"
    kinds = [*(gpus.name or ()), *(f"SM{capability.replace('.', '')}" for capability in gpus.capability or ())]
    where = f", on {' or '.join(kinds)}" if kinds else ""
    return f"{model.rpartition('/')[2]} with {_METHODS.get(method, method)} {whose}, {tokens} a step{where}"


def _figures(reviewed: ModelReview, setup: _Setup) -> Iterator[Figure]:
    for each in reviewed.measured:
        if each.mode in (None, setup.key) and (each.variant is None or each.variant in setup.variants):
            yield Figure(what=each.what, value=each.value, unit=each.unit, conditions=each.conditions, by=each.by)


def _notes(entry: _Entry, setup: _Setup) -> Iterator[str]:
    if entry.format is None:
        yield (
            "Dovetail has no format of its own for this model: its prompts and calls come from its chat template, if "
            "that shows them."
        )
    drafting = [what for what in setup.translation.left_out if what.startswith(arguments.SPECULATION)]
    if drafting:
        yield f"The source also sets {', '.join(drafting)}, for which there is no setting here."
    states = {**(entry.file.meta.hardware or {}), **setup.mode.hardware}
    refused = sorted(gpus for gpus, state in states.items() if state == "unsupported")
    if refused:
        yield f"By the source it does not run on {', '.join(refused)}."
    elsewhere = {*(entry.file.hardware_overrides or {}), *(entry.file.strategy_overrides or {})}
    elsewhere |= {gpus for each in setup.variants for gpus in entry.file.variants[each].hardware_overrides}
    if elsewhere:
        yield f"The source has more arguments for {', '.join(sorted(elsewhere))}, which are not here."
    yield from entry.reviewed.notes
