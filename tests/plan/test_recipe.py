"""Recipes: errors in a file are named, and all conditions must hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import PlanError
from dovetail.plan import recipe
from dovetail.plan.hardware import KINDS, Gpus, parse
from dovetail.plan.layers import overlay
from dovetail.plan.options import BY_NAME
from dovetail.plan.recipe import Conditions, Facts, Machine, Recipe, matching

EVERY = recipe.every()
BLACKWELL = parse("8x RTX PRO 6000")


def names(facts: Facts) -> list[str]:
    return [match.recipe.name for match in matching(facts, EVERY)]


def a_recipe(name: str, match: Conditions | None, **settings: Any) -> Recipe:
    return Recipe(name=name, source="here", settings=settings, match=match)


# --- The bundled recipes ----------------------------------------------------------------------------------------------


def test_every_recipe_has_a_title_and_sources() -> None:
    made = {each.name for imported in recipe.imports() for each in imported.recipes}
    assert len({known.name for known in EVERY}) == len(EVERY)
    for known in EVERY:
        assert (recipe.FOLDER / f"{known.name}.yaml").is_file() != (known.name in made)
        assert known.title != "untitled"
        assert known.links
        assert "host" not in known.settings
        for link in known.links:
            assert "://" in link or (Path(__file__).parents[2] / link).is_file()
        for reason in known.why:
            assert reason in known.settings


def a_machine_for(known: Recipe) -> Gpus:
    """GPUs that the recipe's conditions hold for, and no recipe's for one generation if it has none."""
    machine = known.match.gpu if known.match is not None else None
    assert machine is not None
    kinds = [BLACKWELL.gpu, *KINDS] if machine != Machine(count=1) else [BLACKWELL.gpu]
    for gpu in kinds:
        capability = ".".join(map(str, gpu.capability or ()))
        if (machine.name is None or gpu.name in machine.name) and capability in (machine.capability or (capability,)):
            return Gpus(gpu=gpu, count=machine.count or 1)
    raise AssertionError(known.name)


def test_every_recipe_is_the_most_specific_one_for_its_own_model() -> None:
    for known in EVERY:
        match = known.match
        if match is None:
            continue
        for model in (known.example,) if known.example else match.model or ():
            facts = Facts(
                model=model,
                architectures=match.architecture or (),
                gpus=a_machine_for(known),
                settings=match.settings,
                **({"drafter": match.drafter[0]} if match.drafter else {}),
            )
            first = matching(facts, EVERY)[0]
            assert first.recipe == known
            assert first.layer == recipe.layer(known)


# --- Which recipes match a plan ---------------------------------------------------------------------------------------


def test_context_parallelism_chooses_among_the_recipes_of_a_model() -> None:
    def matches(model: str, **settings: Any) -> list[str]:
        return names(Facts(model=model, gpus=BLACKWELL, settings=settings))

    both = ["kimi-k2.5-sm120-dcp8", "kimi-k2.5-sm120-dcp4"]
    assert matches("moonshotai/Kimi-K2.5") == ["kimi-k2.5-sm120-dcp4"]  # the quicker of the two
    assert matches("moonshotai/Kimi-K2.5", decode_context_parallel_size=8) == both
    assert matches("moonshotai/Kimi-K2.6") == ["kimi-k2.6-sm120-dcp8"]
    assert matches("moonshotai/Kimi-K2.6", decode_context_parallel_size=4)[0] == "kimi-k2.6-sm120-dcp4"
    assert matches("moonshotai/Kimi-K2.7") == []


@pytest.mark.parametrize(
    ("gpus", "fits"),
    [
        ("8x RTX PRO 6000", True),
        ("16x RTX 5090", True),
        ("4x RTX PRO 6000", False),
        ("8x B200", False),  # SM100
        ("8x96GB", False),  # of unknown kind
        (None, False),
    ],
)
def test_gpus_must_be_of_the_kind_and_enough(gpus: str | None, fits: bool) -> None:
    facts = Facts(model="moonshotai/Kimi-K2.5", gpus=parse(gpus) if gpus else None)
    assert bool(names(facts)) == fits


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        ("moonshotai/Kimi-K2.5", True),
        ("MoonshotAI/kimi-k2.5", True),
        ("/models/Kimi-K2.5", True),
        ("/models/Kimi-K2.5/", True),
        ("/home/me/.cache/huggingface/hub/models--moonshotai--Kimi-K2.5/snapshots/0123abc", True),
        ("somebody/Kimi-K2.5", False),
        ("/hub/models--somebody--Kimi-K2.5/snapshots/0123abc", False),
        ("/models/Kimi-K2.5-NVFP4", False),
        ("Kimi-K2", False),
        (None, False),
    ],
)
def test_a_model_is_known_by_its_id_or_its_folders_name(model: str | None, fits: bool) -> None:
    assert bool(names(Facts(model=model, gpus=BLACKWELL))) == fits


def test_a_model_of_another_name_matches_by_its_architecture() -> None:
    facts = Facts(model="/models/mine", architectures=("DeepseekV32ForCausalLM",), gpus=parse("8x H200"))
    assert names(facts) == ["deepseek-v3.2-h200"]
    assert names(facts._replace(gpus=parse("8x B200"))) == ["deepseek-v3.2-b200"]
    assert names(facts._replace(architectures=("DeepseekV3ForCausalLM",))) == []


def test_a_recipe_for_a_drafter_does_not_match_without_it() -> None:
    facts = Facts(model="Qwen/Qwen3-8B", gpus=parse("H100"))
    assert names(facts) == []
    assert names(facts._replace(drafter="RedHatAI/Qwen3-8B-speculator.eagle3")) == ["qwen3-8b-eagle3"]
    assert names(facts._replace(drafter="/models/Qwen3-8B-speculator.eagle3")) == ["qwen3-8b-eagle3"]
    assert names(facts._replace(drafter=None)) == []


@pytest.mark.parametrize("drafter", [None, "nvidia/Kimi-K2.5-Thinking-Eagle3"])
def test_a_recipe_sets_no_drafting_for_another_drafter(drafter: str | None) -> None:
    facts = Facts(model="moonshotai/Kimi-K2.5", gpus=BLACKWELL)
    own, other = matching(facts, EVERY)[0].layer, matching(facts._replace(drafter=drafter), EVERY)[0].layer
    assert other.source == own.source
    drafting = {name for name in own.values if BY_NAME[name].group == "drafting"}
    assert {"drafter", "draft_tokens", "speculate_below_context"} <= drafting
    assert other.values == {name: value for name, value in own.values.items() if name not in drafting}
    named_itself = facts._replace(drafter="/models/kimi-k2.5-eagle3-mla")
    assert matching(named_itself, EVERY)[0].layer == own


CONDITIONS = st.builds(
    Conditions,
    model=st.none() | st.just(("org/a",)),
    model_type=st.none() | st.just(("t",)),
    architecture=st.none() | st.just(("A",)),
    drafter=st.none() | st.just(("org/d",)),
    gpu=st.none()
    | st.builds(Machine, name=st.none() | st.just(("RTX",)), count=st.none() | st.integers(1, 8), capability=st.none()),
    settings=st.just({}) | st.just({"seed": 1}) | st.just({"seed": 1, "port": 2}),
)
FACTS = Facts("org/a", "t", ("A", "B"), "org/d", BLACKWELL, {"seed": 1, "port": 2})


def conditions(match: Conditions) -> int:
    gpu = match.gpu or Machine()
    fields = (match.model, match.model_type, match.architecture, match.drafter, gpu.name, gpu.count)
    return sum(field is not None for field in fields) + len(match.settings)


@given(st.lists(CONDITIONS, max_size=6))
def test_more_conditions_are_more_specific_and_the_first_match_is_the_strongest(stated: list[Conditions]) -> None:
    recipes = [a_recipe(f"r{i}", match, port=i + 1) for i, match in enumerate(stated)]
    matches = matching(FACTS, recipes)
    assert {match.recipe.name for match in matches} == {f"r{i}" for i, match in enumerate(stated) if conditions(match)}
    counts = [conditions(match.recipe.match or Conditions()) for match in matches]
    assert counts == sorted(counts, reverse=True)
    assert counts == [match.conditions for match in matches]
    if matches:
        assert overlay(match.layer for match in matches)["port"].source == f"recipe {matches[0].recipe.name}"
    assert matching(FACTS, reversed(recipes)) == matches


@given(
    CONDITIONS,
    st.sampled_from(
        [
            {"model": "org/other"},
            {"model_type": None},
            {"architectures": ()},
            {"drafter": None},
            {"gpus": None},
            {"gpus": Gpus(gpu=BLACKWELL.gpu, count=0)},
            {"settings": {"port": 2}},
        ]
    ),
)
def test_knowing_less_never_makes_a_recipe_fit(match: Conditions, less: dict[str, Any]) -> None:
    fewer = matching(FACTS._replace(**less), [a_recipe("r", match)])
    assert len(fewer) <= len(matching(FACTS, [a_recipe("r", match)]))


def test_a_model_is_more_specific_than_an_architecture_and_names_decide_last() -> None:
    model, architecture = Conditions(model=("org/a",)), Conditions(architecture=("A",))
    recipes = [a_recipe("a", architecture), a_recipe("c", model), a_recipe("b", model)]
    assert [match.recipe.name for match in matching(FACTS, recipes)] == ["b", "c", "a"]


def test_a_recipe_without_conditions_matches_nothing() -> None:
    assert matching(FACTS, [a_recipe("a", None), a_recipe("b", Conditions())]) == []


# --- Bad files --------------------------------------------------------------------------------------------------------

GOOD = "name: a\nsource: b\n"
BAD: dict[str, tuple[str | bytes, str]] = {
    "no settings": (GOOD, "missing required field `settings`"),
    "no source": ("name: a\nsettings: {}", "missing required field `source`"),
    "unknown field": (GOOD + "settings: {}\nauthor: me", "unknown field `author`"),
    "unknown setting": (GOOD + "settings: {prot: 1}", "there is no setting 'prot'; did you mean port?"),
    "value out of range": (GOOD + "settings: {port: 0}", "port is 0: expected int >= 1"),
    "unknown condition": (GOOD + "settings: {}\nmatch: {modell: [a]}", "unknown field `modell` - at `$.match`"),
    "condition of an unknown setting": (
        GOOD + "settings: {}\nmatch: {settings: {zzz: 1}}",
        "match: there is no setting",
    ),
    "a model that is no list": (GOOD + "settings: {}\nmatch: {model: a}", "at `$.match.model`"),
    "an empty list": (GOOD + "settings: {}\nmatch: {model: []}", "length >= 1 - at `$.match.model`"),
    "a capability that is a number": (GOOD + "settings: {}\nmatch: {gpu: {capability: [12.0]}}", "capability[0]`"),
    "a capability that is none": (GOOD + 'settings: {}\nmatch: {gpu: {capability: ["SM120"]}}', "capability[0]`"),
    "a figure of nobody": (
        GOOD + "settings: {}\nmeasured: [{what: x, value: 1, unit: y, conditions: z}]",
        "missing required field `by`",
    ),
    "a figure that is a word": (
        GOOD + "settings: {}\nmeasured: [{what: x, value: fast, unit: y, conditions: z, by: w}]",
        "at `$.measured[0].value`",
    ),
    "a variable that says nothing": (GOOD + "settings: {}\nenv: {A: {value: 1}}", "missing required field `why`"),
    "a variable of no name": (GOOD + "settings: {}\nenv: {A B: {why: x}}", "not a name of an environment variable"),
    "env as a setting": (GOOD + "settings: {env: {A: 1}}", "env is a field of its own, not a setting"),
    "a reason for nothing": (GOOD + "settings: {}\nwhy: {port: x}", "why has a reason for 'port'"),
    "no YAML": (GOOD + "settings: {", "is not valid YAML"),
    "not UTF-8": (b"name: \xff", "is not valid YAML"),
    "nested without end": ("[" * 200_000, "is not valid YAML"),
    "a date that is none": (GOOD + "settings: {port: 2001-99-99}", "port is '2001-99-99': expected int, got str"),
    "a name that steers the terminal": ('name: "\\e]0;me\\a"\nsource: b\nsettings: {}', "at `$.name`"),
    "a drafter with a NUL": (GOOD + 'settings: {drafter: "~a\\0b"}', "contains a NUL"),
    "a variable with a NUL": (GOOD + 'settings: {}\nenv: {A: {why: x, value: "a\\0"}}', "contains a NUL"),
    "empty": ("", "cannot be read"),
    "a list": ("- a", "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    file = tmp_path / "bad.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError) as refusal:
        recipe.read(file)
    assert refusal.value.message.startswith(f"recipe {file}")
    assert message in refusal.value.message
    assert "\n" not in refusal.value.message


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^recipe .*none\.yaml cannot be read: "):
        recipe.read(tmp_path / "none.yaml")


def test_a_recipe_may_use_old_names_and_its_own_paths(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    file = tmp_path / "old.yaml"
    file.write_text(
        GOOD + "settings: {model: target, max_num_seqs: 4}\nwhy: {max_batch: enough}\nenv: {A: {why: x, value: 1}}"
    )
    assert recipe.layer(recipe.read(file)).values == {
        "target": str(tmp_path / "target"),
        "max_batch": 4,
        "env": {"A": 1},
    }
