"""The importer of vLLM's recipes: what it maps, what it leaves out and why, and the file that comes with Dovetail."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.formats.registry import FAMILIES
from dovetail.plan import recipe
from dovetail.plan.recipe import Imported, Machine, Recipe
from recipe_import import __main__ as command
from recipe_import import arguments, build, review
from recipe_import.checkout import Checkout
from recipe_import.review import ModelReview, Parsers, Published, Review

TAXONOMY = """
hardware_profiles:
  h200: {generation: hopper}
  b200: {generation: blackwell}
  mi300x: {generation: amd}
"""
#: A model with two ways to draft, three checkpoints, and settings of its own for Hopper.
BIG = """
meta:
  title: Big
  date_updated: 2026-08-01
  hardware: {h200: verified, mi300x: unsupported}
model:
  model_id: org/Big
  base_args: ["--trust-remote-code", "--block-size", "256", "--served-model-name", "big"]
  base_env: {VLLM_A: "1"}
features:
  tool_calling: {args: ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"]}
  reasoning: {args: ["--reasoning-parser", "qwen3"]}
  spec_decoding:
    default_mode: mtp
    modes:
      mtp:
        args: ["--speculative-config", '{"method": "big_mtp", "num_speculative_tokens": 2}']
        hardware_overrides:
          hopper: {args: ["--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens", "1"]}
          tpu: {args: ["--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens", "1"]}
      dspark:
        variants: [default, nvfp4]
        args: ["--speculative-config", '{"method": "dspark", "model": "org/Big-dspark", "num_speculative_tokens": 7,
          "draft_sample_method": "probabilistic", "rejection_sample_method": "block", "moe_backend": "triton"}']
variants:
  default: {precision: bf16}
  fp8: {model_id: org/Big-FP8, precision: fp8, extra_args: ["--kv-cache-dtype", "fp8"]}
  nvfp4: {model_id: org/Big-NVFP4, precision: nvfp4, extra_args: ["--kv-cache-dtype=fp8"]}
hardware_overrides:
  amd: {extra_args: ["--enforce-eager"]}
guide: |
  Drafts are accepted at 2.5 tokens a step.
"""
PLAIN = """
meta: {date_updated: 2026-08-02}
model: {model_id: org/plain, base_args: []}
variants: {default: {}}
"""
SMALL = """
meta: {date_updated: 2026-08-02}
model: {model_id: org/small, base_args: ["--max-model-len auto", "--no-enable-chunked-prefill"]}
features:
  spec_decoding: {args: ["--speculative-config", '{"model": "org/small-draft", "num_speculative_tokens": 3}']}
variants: {default: {}}
"""
REVIEW = Review(
    formats=(
        Parsers(calls="qwen3_coder", reasoning="qwen3", format="qwen3_coder"),
        Parsers(calls=None, reasoning=None, format=None),
    ),
    methods={"org/small-draft": "eagle3"},
)


SOURCE = {"org/Big": BIG, "org/plain": PLAIN, "Org2/small": SMALL}


def imported(models: dict[str, str] = SOURCE, reviewed: Review = REVIEW) -> Imported:
    generations = {"h200": "hopper", "b200": "blackwell", "mi300x": "amd"}
    return build.imported(Checkout("c" * 40, datetime.date(2026, 8, 3), models, generations), reviewed)


def changed(name: str, before: str, after: str) -> dict[str, str]:
    """The source with a change in the file of one model."""
    assert before in SOURCE[name]
    return SOURCE | {name: SOURCE[name].replace(before, after)}


def by_name(result: Imported) -> dict[str, Recipe]:
    return {each.name: each for each in result.recipes}


# --- What is mapped ---------------------------------------------------------------------------------------------------


def test_every_way_to_draft_becomes_a_recipe_for_the_checkpoints_with_the_same_settings() -> None:
    recipes = by_name(imported())
    assert {name: each.match.model for name, each in recipes.items() if each.match} == {
        "big-mtp": ("org/Big",),
        "big-mtp-hopper": ("org/Big",),
        "big-mtp-fp8": ("org/Big-FP8", "org/Big-NVFP4"),
        "big-mtp-fp8-hopper": ("org/Big-FP8", "org/Big-NVFP4"),
        "big-dspark": ("org/Big",),
        "big-dspark-nvfp4": ("org/Big-NVFP4",),
        "small": ("org/small",),
    }
    base = {"engine": "vllm", "format": "qwen3_coder", "trust_remote_code": True, "engine_args": "--block-size 256"}
    fp8 = {"kv_cache_dtype": "fp8"}
    assert recipes["big-mtp"].settings == base | {"method": "mtp", "draft_tokens": 2}
    assert recipes["big-mtp-fp8"].settings == base | fp8 | {"method": "mtp", "draft_tokens": 2}
    assert recipes["big-mtp-hopper"].settings == base | {"method": "mtp", "draft_tokens": 1}
    drafting = {"method": "dspark", "draft_tokens": 7, "draft_sampling": "probabilistic"}
    assert recipes["big-dspark-nvfp4"].settings == base | fp8 | drafting | {"draft_acceptance": "block"}
    assert recipes["small"].settings == {
        "engine": "vllm",
        "chunked_prefill": False,
        "method": "eagle3",
        "drafter": "org/small-draft",
        "draft_tokens": 3,
    }


def test_only_the_way_that_the_source_chooses_applies_by_itself() -> None:
    recipes = by_name(imported())
    conditions = {name: each.match for name, each in recipes.items()}
    assert conditions["big-mtp"] == recipe.Conditions(model=("org/Big",), gpu=Machine(count=1))
    assert conditions["big-mtp-hopper"] == recipe.Conditions(
        model=("org/Big",), gpu=Machine(capability=("9.0",), count=1)
    )
    assert conditions["big-dspark"] == recipe.Conditions(
        model=("org/Big",), gpu=Machine(count=1), drafter=("org/Big-dspark",)
    )


def test_a_way_without_a_drafter_that_is_not_chosen_applies_to_those_who_ask_for_its_method() -> None:
    other = changed("org/Big", "default_mode: mtp", "default_mode: dspark")
    conditions = {name: each.match for name, each in by_name(imported(other)).items()}
    assert conditions["big-dspark"] == recipe.Conditions(model=("org/Big",), gpu=Machine(count=1))
    mtp, fp8 = conditions["big-mtp"], conditions["big-mtp-fp8"]  # the FP8 checkpoint has no DSpark
    assert mtp is not None and mtp.settings == {"method": "mtp"}
    assert fp8 is not None and (fp8.model, fp8.settings) == (("org/Big-FP8",), {})


def test_a_recipe_names_its_source_its_commit_and_its_date() -> None:
    result = imported()
    assert (result.commit, result.date, result.licence) == ("c" * 40, "2026-08-03", "Apache-2.0")
    big = by_name(result)["big-mtp"]
    assert big.source == "vLLM's recipes (vllm-project/recipes, Apache-2.0), as revised on 2026-08-01"
    assert big.links[0] == f"{build.REPOSITORY}/blob/{result.commit}/models/org/Big.yaml"
    assert {name: variable.value for name, variable in big.env.items()} == {"VLLM_A": "1"}
    assert big.notes == (
        "By the source it does not run on mi300x.",
        "The source has more arguments for amd, which are not here.",
    )
    assert "Dovetail has no format" in by_name(result)["small"].notes[0]


def test_what_was_reviewed_is_added() -> None:
    def figure(mode: str | None, variant: str | None, value: float) -> Published:
        return Published(
            what="acceptance length",
            value=value,
            unit="tokens",
            conditions="x",
            by="y",
            mode=mode,
            variant=variant,
            found="2.5 tokens a step",
        )

    measured = (figure("mtp", None, 2.5), figure("dspark", "nvfp4", 3.5))
    big = ModelReview(name="large", aliases=("l",), measured=measured, notes=("n",), links=("https://a",), format=None)
    recipes = by_name(imported(reviewed=msgspec.structs.replace(REVIEW, models={"org/Big": big})))
    assert "format" not in recipes["large-mtp"].settings
    assert recipes["large-mtp"].aliases == ("l",)
    assert recipes["large-mtp"].notes[-1] == "n" and recipes["large-mtp"].links[-1] == "https://a"
    assert {name: [each.value for each in one.measured] for name, one in recipes.items() if one.measured} == {
        "large-mtp": [2.5],
        "large-mtp-fp8": [2.5],
        "large-dspark-nvfp4": [3.5],
    }


def test_models_with_recipes_by_hand_are_covered_and_not_imported() -> None:
    models = {"org/Big": ModelReview(by_hand=("mine",))}
    result = imported(reviewed=msgspec.structs.replace(REVIEW, models=models))
    assert (result.models, dict(result.covered)) == (3, {"org/Big": ("mine",), "Org2/small": ("small",)})


# --- What is left out -------------------------------------------------------------------------------------------------


def test_what_cannot_be_mapped_is_listed_with_its_reason() -> None:
    listed = {(each.model, each.what): each.why for each in imported().left_out}
    assert listed == {
        ("org/Big", "--served-model-name big"): "the name is the user's",
        ("org/Big", "--speculative-config.moe_backend triton"): "no setting here",
        ("org/Big", "big-mtp on tpu"): "no such GPU in a plan",
        ("org/Big", "big-mtp-fp8 on tpu"): "no such GPU in a plan",
        ("Org2/small", "--max-model-len auto"): "a plan chooses the longest context that fits by itself",
    }


@pytest.mark.parametrize(
    ("before", "after", "what", "why"),
    [
        (
            '"qwen3_coder"',
            '"new"',
            "everything",
            "nobody has reviewed which format has the parsers new (calls) and qwen3",
        ),
        ("big_mtp", "telepathy", "mtp of default", "the method telepathy is no setting"),
        ('"method": "dspark", ', "", "dspark of default", "no method is named for the drafter org/Big-dspark"),
        ('"--block-size"', '"--headless"', "mtp of default", "with --headless Dovetail could not reach the engine"),
        ('"num_speculative_tokens": 7', '"num_speculative_tokens": 65', "dspark of default", "draft_tokens is 65"),
        ('"--block-size"', '"block-size"', "mtp of default", "trust_remote_code is 'block-size'"),
        (
            '"model": "org/Big-dspark"',
            '"model": "/cache/dflash"',
            "dspark of default",
            "/cache/dflash is no id on the hub",
        ),
        (', "num_speculative_tokens": 7', "", "dspark of nvfp4", "no number of draft tokens is named"),
        (
            "variants: [default, nvfp4]",
            "variants: [default, int4]",
            "dspark of int4",
            "the file has no such checkpoint",
        ),
        (
            '"--speculative-config.method", "mtp"',
            '"--speculative-config.method", "x"',
            "big-mtp on hopper",
            "the method x",
        ),
        ('"--block-size", "256"', '"--load-format", "a\\0"', "mtp of default", "it contains a NUL"),
        ('\'{"method": "big_mtp"', '\'{"method": ', "mtp of default", "Expecting value"),
        ("org/Big-FP8", "org/Big", "mtp of fp8", "the same checkpoint as default, of which a plan could not tell it"),
    ],
)
def test_what_is_wrong_with_a_model_is_listed(before: str, after: str, what: str, why: str) -> None:
    listed = {
        each.what: each.why for each in imported(changed("org/Big", before, after)).left_out if each.model == "org/Big"
    }
    assert why in listed[what]


def test_a_model_of_which_nothing_can_be_mapped_is_not_covered() -> None:
    result = imported(changed("Org2/small", "org/small-draft", "org/unknown"))
    assert result.covered["Org2/small"] == ()
    assert "small" not in by_name(result)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"org/gone": ModelReview()}, "reviewed, but not in the checkout: org/gone"),
        (
            {
                "org/Big": ModelReview(
                    measured=(Published(what="a", value=1, unit="b", conditions="c", by="d", found="9"),)
                )
            },
            "models/org/Big.yaml does not have '9', which the review has from there",
        ),
        (
            {"org/Big": ModelReview(name="small", left_out={"mtp": "x", "dspark": "y"}), "Org2/small": ModelReview()},
            None,
        ),
        ({"org/Big": ModelReview(name="small", left_out={"mtp": "x"})}, "several recipes are called small"),
    ],
)
def test_a_review_that_contradicts_the_source_is_refused(models: dict[str, ModelReview], message: str | None) -> None:
    reviewed = msgspec.structs.replace(REVIEW, models=models)
    if message is None:
        assert [each.name for each in imported(reviewed=reviewed).recipes] == ["small"]
    else:
        with pytest.raises(ValueError, match=message):
            imported(reviewed=reviewed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("meta: {", "while parsing"), ("meta: {}", "missing required field"), ("[]", "Expected")],
)
def test_a_file_of_another_shape_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"models/org/Big.yaml cannot be read: .*{reason}"):
        imported(SOURCE | {"org/Big": text})


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--max-num-seqs", "16", "--async-scheduling"], {"max_batch": 16, "async_scheduling": True}),
        (["--no-async-scheduling"], {"async_scheduling": False}),
        (["--disable-prefix-caching"], {"prefix_caching": False}),
        (["--gpu-memory-utilization=0.9"], {"gpu_memory_utilization": 0.9}),
        (["--load_format", "mistral"], {"load_format": "mistral"}),
        (["--moe-backend", "triton"], {"engine_args": "--moe-backend triton"}),
        (["--mamba.b", "x y"], {"engine_args": "--mamba.b 'x y'"}),
        (["--attention_config.backend", "A"], {"engine_args": "--attention_config.backend A"}),
        (
            ["--speculative-config", '{"method": "eagle", "model": "o/d", "num_speculative_tokens": 3}'],
            {"method": "eagle", "drafter": "o/d", "draft_tokens": 3},
        ),
        (
            [
                f"--speculative-config.{each}"
                for each in ("method=mtp", "num_speculative_tokens=2", "max_model_len=65536")
            ],
            {"method": "mtp", "draft_tokens": 2, "speculate_below_context": 65536},
        ),
        (
            ["--speculative-config", '{"method": "ernie_mtp", "model": "org/own", "num_speculative_tokens": 1}'],
            {"method": "mtp", "draft_tokens": 1},
        ),
    ],
)
def test_arguments_become_settings(words: list[str], settings: dict[str, Any]) -> None:
    assert arguments.translated(words, ["org/own"], {}) == arguments.Translation(settings, {})


# --- The command, and the file that comes with Dovetail ---------------------------------------------------------------


def test_the_command_reads_a_commit_and_writes_the_same_file_from_a_bare_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    for name, text in {f"models/{name}.yaml": text for name, text in SOURCE.items()}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "taxonomy.yaml").write_text(TAXONOMY)
    git("init", "-q")
    git("add", "models", "taxonomy.yaml")
    git("commit", "-qm", "recipes")
    git("clone", "-q", "--bare", str(tmp_path), str(tmp_path / "bare"))
    (tmp_path / "models/org/Big.yaml").write_text("not committed")
    monkeypatch.setattr(review, "read", lambda: REVIEW)
    for source, output in ((tmp_path, tmp_path / "a.json"), (tmp_path / "bare", tmp_path / "b.json")):
        assert command.main([str(source), "--output", str(output)]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    written = msgspec.json.decode((tmp_path / "a.json").read_bytes(), type=Imported)
    assert (written.commit, written.date) == (git("rev-parse", "HEAD"), git("log", "-1", "--format=%cs"))
    assert written.left_out == imported().left_out and by_name(written).keys() == by_name(imported()).keys()
    page = capsys.readouterr().out
    assert "3 models, 2 with a speculative setup\n2 of them covered, 7 recipes written" in page
    assert "left out: org/Big: --served-model-name big: the name is the user's\n" in page


def test_a_folder_that_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path), "--output", str(tmp_path / "a.json")]) == 1
    assert "recipe_import: " in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


(BUNDLED,) = recipe.imports()


def test_the_bundled_file_is_what_the_review_says() -> None:
    """Without the checkout: names, formats and left-out modes of the review are those of the file."""
    reviewed, names = review.read(), {each.name for each in recipe.every()}
    assert {parsers.format for parsers in reviewed.formats} - {None} <= FAMILIES.keys()
    assert reviewed.models.keys() <= BUNDLED.covered.keys()
    assert {name for recipes in BUNDLED.covered.values() for name in recipes} <= names
    figures = {(figure.what, figure.value, figure.by) for each in BUNDLED.recipes for figure in each.measured}
    assert {
        (figure.what, figure.value, figure.by) for model in reviewed.models.values() for figure in model.measured
    } == figures
    assert command.written(BUNDLED) == command.OUTPUT.read_bytes()


def test_every_imported_recipe_is_valid_and_says_where_it_is_from() -> None:
    for each in BUNDLED.recipes:
        assert recipe.checked(each, each.name, recipe.FOLDER) == each
        assert f"/{BUNDLED.commit}/" in each.links[0]
        assert ("format" in each.settings) != any("has no format" in note for note in each.notes)
        assert each.settings["method"] and each.settings["draft_tokens"]


@pytest.mark.parametrize(
    "model",
    "Google/gemma-4-31B-it MiniMaxAI/MiniMax-M3 Qwen/Qwen3.5-397B-A17B Qwen/Qwen3.6-27B Qwen/Qwen3.8-27B "
    "XiaomiMiMo/MiMo-V2.5 deepseek-ai/DeepSeek-V4-Flash deepseek-ai/DeepSeek-V4-Pro inclusionAI/Ling-3.0-flash "
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16 openai/gpt-oss-120b stepfun-ai/Step-3.5-Flash "
    "stepfun-ai/Step-3.7-Flash thinkingmachines/Inkling zai-org/GLM-4.5 zai-org/GLM-5.2 moonshotai/Kimi-K2.7-Code "
    "moonshotai/Kimi-K3".split(),
)
def test_the_models_that_people_run_are_covered(model: str) -> None:
    assert BUNDLED.covered[model]


def test_the_page_has_the_counts() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "plan.md").read_text().split())
    known, made = {each.name: each for each in recipe.every()}, {each.name for each in BUNDLED.recipes}
    models = [[known[name] for name in names] for names in BUNDLED.covered.values()]
    covered = [recipes for recipes in models if recipes]
    imported = [recipes for recipes in covered if any(each.name in made for each in recipes)]
    without = [recipes for recipes in covered if not any("format" in each.settings for each in recipes)]
    measured = [recipes for recipes in covered if any(each.measured for each in recipes)]
    for text in (
        f"commit `{BUNDLED.commit[:7]}` of {BUNDLED.date}: {BUNDLED.models} models,",
        f"{BUNDLED.models} models, {len(models)} with a speculative setup,",
        f"{len(covered)} of them covered, {len(imported)} by {len(made)} recipes made by",
        f"{len(covered) - len(imported)} by hand. For {len(without)} of these models there is no format",
        f"{len(measured)} of the {len(models)} models have any",
    ):
        assert text in page
