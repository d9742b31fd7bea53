"""`dovetail recipes`: the list, each recipe in full, and the check of a user's own recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.plan.recipe import FOLDER, every


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str | Path) -> str:
        code = main(["recipes", *map(str, arguments)])
        out, error = capsys.readouterr()
        assert (code, error) == (0, "")
        return out

    return run


def words(page: str) -> str:
    return " ".join(page.split())


def test_the_list_has_titles_conditions_and_measurements(recipes: Any) -> None:
    page = recipes()
    assert max(map(len, page.splitlines())) <= 80
    for recipe in every():
        assert f"{recipe.name}\n" in page
        assert recipe.title in words(page)
    assert "decode throughput 85.5 tokens/s, and 19 more figures" in words(page)
    assert "The model is Qwen/Qwen3-8B; the drafter is RedHatAI/Qwen3-8B-speculator.eagle3; there is a GPU." in words(
        page
    )


#: Those that were written by hand, and of the imported ones each that shows something else.
SHOWN = [recipe for recipe in every() if (FOLDER / f"{recipe.name}.yaml").is_file()]
SHOWN += [recipe for recipe in every() if recipe.name in ("glm-5.2-mtp", "inkling", "kimi-k2.7-code")]


@pytest.mark.parametrize("recipe", SHOWN, ids=lambda recipe: recipe.name)
def test_a_recipe_is_shown_in_full(recipes: Any, recipe: Any) -> None:
    page = recipes(recipe.name)
    assert max(map(len, page.splitlines())) <= 80
    shown = words(page)
    for text in (recipe.title, *recipe.aliases, *recipe.settings, *recipe.why.values(), *recipe.env, *recipe.notes):
        assert words(text) in shown
    for variable in recipe.env.values():
        assert words(variable.why) in shown
    for figure in recipe.measured:
        assert words(f"{figure.value:,g} {figure.unit} {figure.what}, ")[:20] in shown
        assert words(figure.by) in shown
    assert ("measured: nothing" in shown) == (not recipe.measured)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("gemma-4-31b-it", ["gemma-4-31b-it"]),  # not gemma-4-31b-it-fp8, which contains it
        ("Gemma-4-31B-it", ["gemma-4-31b-it"]),
        ("nemotron-3", ["nemotron-3-super", "nemotron-3-super-nvfp4", "nemotron-3-ultra"]),  # an alias
        ("k2.7", ["kimi-k2.7-code"]),
        ("XiaomiMiMo/MiMo", ["mimo-v2.5", "mimo-v2.5-pro"]),  # a part of models' ids
        ("p-eagle", ["gpt-oss-120b-p-eagle", "gpt-oss-20b-p-eagle"]),
        ("lightseekorg/kimi-k2.7", ["kimi-k2.7-code"]),  # a part of the drafter's id
    ],
)
def test_recipes_are_found_by_name_alias_and_part(recipes: Any, asked: str, names: list[str]) -> None:
    listed = json.loads(recipes(asked, "--json"))
    assert [each["name"] for each in (listed if len(names) > 1 else [listed])] == names
    page = recipes(asked)
    for name in names:
        assert f"{name}\n" in page
    assert ("settings\n" in page) == (len(names) == 1)


@pytest.mark.parametrize(
    ("asked", "near"),
    [("gemma-4-32b", "gemma-4-31b-it"), ("gml-5.1", "did you mean glm-5.1 or "), ("", "lists them")],
)
def test_a_name_of_none_suggests_near_ones(asked: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", asked]) == 2
    error = capsys.readouterr().err
    assert f"there is no recipe {asked!r}, and no file of that name; " in error and near in error
    assert error.count("\n") == 1


def test_a_recipe_says_whether_there_is_a_format(recipes: Any) -> None:
    assert "format glm47" in words(recipes("glm-5.2-mtp"))
    assert "format no format (detected" in words(recipes("inkling-small-mxfp4"))
    assert "format no format (detected" in words(recipes("ling3"))


def test_recipes_as_json(recipes: Any) -> None:
    listed = json.loads(recipes("--json"))
    assert [each["name"] for each in listed] == [recipe.name for recipe in every()]
    (dcp4,) = (each for each in listed if each["name"] == "kimi-k2.5-sm120-dcp4")
    assert json.loads(recipes("kimi-k2.5-sm120-dcp4", "--json")) == dcp4
    assert dcp4["settings"]["decode_context_parallel_size"] == 4
    assert dcp4["measured"][0]["value"] == 85.5


def test_a_users_own_recipe_is_checked_and_shown(
    recipes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('name: mine\nsource: me\ntitle: "Mine \\e[31m"\nsettings: {port: 9000}\n')
    page = recipes(file)
    assert "Mine ␛[31m" in page and "port  9000" in page
    file.write_text("name: mine\nsource: me\nsettings: {prot: 9000}")
    assert main(["recipes", str(file)]) == 2
    error = capsys.readouterr().err
    assert "there is no setting 'prot'; did you mean port?" in error and error.count("\n") == 1
