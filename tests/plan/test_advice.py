"""Advice names what could be gained, with estimated figures or a recipe's, and nothing that the plan has already."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import PlanError
from dovetail.plan import hardware, memory, recipe, resolve
from dovetail.plan.outcome import Plan
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_EAGLE3_MLA,
    KIMI_K2,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    QWEN3_NEXT,
    Config,
    write,
    write_index,
)
from tests.examples import slow_but
from tests.plan.conftest import Put
from tests.plan.pair import write_target

pytestmark = pytest.mark.usefixtures("no_gpus")
DEMO_TARGET = str(Path(memory.__file__).parents[1] / "data" / "demo" / "target")


def gains(plan: Plan) -> dict[str, list[str]]:
    """Setting -> what would be gained by it."""
    by_setting: dict[str, list[str]] = {}
    for each in plan.advice_of("advice"):
        by_setting.setdefault(each.setting, []).append(each.message)
    return by_setting


def planned(folder: Path, config: Config, **options: Any) -> dict[str, list[str]]:
    return gains(resolve(write(folder / "target", config), options, recipe="none"))


def test_lookups_are_offered_where_nothing_drafts(tmp_path: Path) -> None:
    (offer,) = planned(tmp_path, QWEN3_8B)["method"]
    assert offer.startswith("--method suffix or --method ngram drafts from earlier text")
    assert "method" not in planned(tmp_path, QWEN3_8B, method="ngram")
    drafter = write(tmp_path / "drafter", QWEN3_8B_EAGLE3)
    assert not planned(tmp_path, QWEN3_8B, drafter=drafter).keys() & {"method", "drafter"}


def test_mtp_inside_the_target_is_offered(tmp_path: Path) -> None:
    offer = planned(tmp_path, DEEPSEEK_V32)["method"][0]
    assert offer.startswith("--method mtp drafts with the target's own 1 MTP layer: nothing to download, 15.")
    assert "--method mtp" not in str(planned(tmp_path, DEEPSEEK_V32, method="mtp"))
    write_index(tmp_path / "target", {"a.safetensors": ["model.layers.0.x"]}, total_size=10**9)
    assert "--method mtp" not in str(planned(tmp_path, DEEPSEEK_V32))


def test_a_recipes_drafter_is_offered_with_its_figures(put: Put) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    (offer,) = gains(resolve("Qwen/Qwen3-8B", {"gpus": "H100"}))["drafter"]
    assert offer.startswith(
        "--drafter RedHatAI/Qwen3-8B-speculator.eagle3 drafts for this model. Measured: acceptance "
    )
    assert "2.26 tokens a step, of 4" in offer and "by vLLM's own regression test" in offer
    (offer,) = gains(resolve("moonshotai/Kimi-K2.5", {"gpus": "8x B200"}))["drafter"]  # two recipes have the same
    assert "lightseekorg/kimi-k2.5-eagle3-mla" in offer and "2.94" in offer


def test_an_unused_recipe_is_offered_if_it_may_match(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)

    def offered(gpus: str, named: str | None = None) -> list[str]:
        plan = resolve("moonshotai/Kimi-K2.5", {"gpus": gpus}, recipe=named)
        return [message.split()[1] for message in gains(plan).get("recipe", [])]

    assert offered("8x96GB") == ["kimi-k2.5-sm120-dcp4", "kimi-k2.5-sm120-dcp8"]
    assert offered("8x141GB")[0] == "kimi-k2.5-h200"  # an H200 has this size
    assert offered("8x B200") == []  # is known not to be of that kind
    assert offered("8x RTX PRO 6000") == []  # is taken
    assert offered("8x96GB", "none") == []  # is switched off


def test_every_figure_is_a_recipes(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    known = {f"{figure.value:g} {figure.unit}" for each in recipe.every() for figure in each.measured}
    messages = [each.message for each in resolve("moonshotai/Kimi-K2.5", {"gpus": "8x96GB"}).advice_of("advice")]
    figures = [re.findall(r"Measured: \D+([\d.]+ [^(]+) \(.*; by \S", message) for message in messages]
    assert len(sum(figures, start=[])) == sum("Measured" in message for message in messages) == 3  # noqa: RUF017
    assert {figure for group in figures for figure in group} <= known


@pytest.mark.parametrize(("config", "gpus"), [(QWEN3_8B, "H100"), (KIMI_K2, "8x H200"), (DEEPSEEK_V32, "8x B200")])
def test_an_fp8_cache_is_offered_with_its_room(tmp_path: Path, config: Config, gpus: str) -> None:
    (offer,) = planned(tmp_path, config, gpus=gpus)["kv_cache_dtype"]
    changed, now = (int(number.replace(",", "")) for number in re.findall(r"[\d,]{4,}", offer))
    with_it = resolve(str(tmp_path / "target"), {"gpus": gpus, "kv_cache_dtype": "fp8"}, recipe="none")
    assert with_it.fit is not None and with_it.fit.each is not None
    assert with_it.fit.each.tokens == changed > now
    assert "kv_cache_dtype" not in gains(with_it)


def test_an_fp8_cache_is_not_offered_for_gpus_without_fp8(tmp_path: Path) -> None:
    assert "kv_cache_dtype" not in planned(tmp_path, QWEN3_8B, gpus="A100 80GB")
    (offer,) = planned(tmp_path, QWEN3_8B)["kv_cache_dtype"]  # no GPUs are known: by the token
    assert offer == "--kv-cache-dtype fp8: 73,728 bytes of KV cache per token on each GPU instead of 147,456"


def test_a_divided_mla_cache_is_offered(tmp_path: Path) -> None:
    (offer,) = planned(tmp_path, KIMI_K2, gpus="8x H200")["decode_context_parallel_size"]
    gpus = hardware.parse("8x H200").gpu
    target = resolve(str(tmp_path / "target"), {"gpus": "8x H200"}).target
    assert target is not None
    divided = memory.budget(target, None, memory.Layout(tensor=8, decode_context=8), gpus)
    assert f"--decode-context-parallel-size 8: room for {divided.tokens:,} tokens instead of" in offer
    for config, options in ((KIMI_K2, {"decode_context_parallel_size": 8}), (DEEPSEEK_V32, {}), (QWEN3_8B, {})):
        assert "decode_context_parallel_size" not in planned(tmp_path, config, gpus="8x H200", **options)


def test_a_longer_context_is_offered_where_it_fits(tmp_path: Path) -> None:
    (offer,) = planned(tmp_path, QWEN3_8B, gpus="H100", context=4096)["context"]
    assert offer.startswith("--context 40960 fits as well: one such sequence takes 6.0 GB of the")
    assert "context" not in planned(tmp_path, QWEN3_8B, gpus="24GB", context=4096)
    assert "context" not in planned(tmp_path, QWEN3_8B, gpus="H100")


def test_unused_gpus_are_offered(tmp_path: Path) -> None:
    (offer,) = planned(tmp_path, QWEN3_8B, gpus="8x H100")["data_parallel_size"]
    assert "--data-parallel-size 8 serves that many times the requests, on the 7 unused GPUs too" in offer
    assert "data_parallel_size" not in planned(tmp_path, QWEN3_8B, gpus="8x H100", data_parallel_size=8)
    assert "--gpus '8x B200'" in planned(tmp_path, QWEN3_8B)["gpus"][0]


#: Further settings of a user, which rule out some advice.
SAID: tuple[dict[str, Any], ...] = (
    {},
    {"context": 4096},
    {"max_batch": 4},
    {"method": "mtp"},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
    {"decode_context_parallel_size": 2},
    {"draft_tensor_parallel_size": 8},
    {"speculate_below_context": 8192},
    {"speculate_below_context": 8192, "method": "mtp"},
)
MACHINES = ("H100", "8x H100", "16x H100", "8x H200", "8x B200", "3x B200", "8x RTX PRO 6000", "4x RTX 5090", "2x48GB")


def followed(message: str) -> list[dict[str, Any]]:
    """The settings that a message names with values, all together. Values of one setting are tried one at a time."""
    named: dict[str, list[Any]] = {}
    for name, value in re.findall(r"--([a-z][a-z-]+) ([^\s:;,)]+)", message):
        named.setdefault(name.replace("-", "_"), []).append(int(value) if value.isdigit() else value)
    return [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]


@pytest.mark.parametrize(
    "config",
    slow_but([KIMI_K2, KIMI_K25, DEEPSEEK_V32, QWEN3_8B, QWEN3_235B, QWEN3_NEXT], KIMI_K25, DEEPSEEK_V32),
    ids=lambda config: config["model_type"],
)
def test_a_plan_that_follows_the_advice_is_accepted(tmp_path: Path, config: Config) -> None:
    """It has room for as many tokens as the advice names."""
    target = write(tmp_path / "target", config)
    offers = 0
    for gpus, more in itertools.product(MACHINES, SAID):
        options = {"engine": "vllm", "gpus": gpus} | more
        try:
            plan = resolve(target, options, recipe="none")
        except PlanError:
            continue  # does not fit, or nothing there to draft with
        for each in plan.advice_of("advice"):
            for changes in followed(each.message):
                if changes.keys() <= {"gpus"} or changes.get("drafter") == "PATH":
                    continue
                offers += 1
                changed = resolve(target, options | changes, recipe="none")  # not refused
                promised = re.search(r"room for ([\d,]+) tokens", each.message)
                if promised is not None:
                    assert changed.fit is not None and changed.fit.each is not None
                    assert changed.fit.each.tokens == int(promised[1].replace(",", "")), (options, changes)
    assert offers > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2.5", "deepseek-ai/DeepSeek-V3.2", "Qwen/Qwen3-8B"])
def test_a_plan_with_an_advised_recipe_or_drafter_is_accepted(put: Put, name: str) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("deepseek-ai/DeepSeek-V3.2", DEEPSEEK_V32)
    put("Qwen/Qwen3-8B", QWEN3_8B)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    offers = 0
    for gpus, more in itertools.product((None, "8x96GB", "8x RTX PRO 6000", "16x H100", "4x B200"), SAID):
        options = {"engine": "vllm", "gpus": gpus} | more
        try:
            plan = resolve(name, options)
        except PlanError:
            continue
        for each in plan.advice_of("advice"):
            if each.setting in ("recipe", "drafter"):
                (changes,) = followed(each.message)
                if changes != {"drafter": "PATH"}:
                    offers += 1
                    resolve(
                        name, options | changes if each.setting == "drafter" else options, recipe=changes.get("recipe")
                    )
    assert offers > 5


def test_replicas_are_offered_beside_a_gate_too(tmp_path: Path) -> None:
    """What is verified may differ by rank; what is drafted changed does not."""
    changes = {"gpus": "8x H200", "method": "mtp", "engine": "vllm", "speculate_below_context": 8192}
    assert "data_parallel_size" in gains(resolve(write(tmp_path / "target", QWEN3_NEXT), changes))


def test_mtp_layers_are_not_offered_if_they_do_not_fit(tmp_path: Path) -> None:
    changes = {"gpus": "8x RTX PRO 6000", "draft_tensor_parallel_size": 8}
    offers = [str(planned(tmp_path, DEEPSEEK_V32, **changes, gpu_memory_utilization=part)) for part in (0.92, 0.95)]
    assert ["--method mtp" in offer for offer in offers] == [False, True]


def test_the_embedded_engine_is_offered_only_what_it_supports() -> None:
    offers = gains(resolve(DEMO_TARGET, {}))
    assert offers.keys() == {"drafter"}
    assert "(EAGLE-3, P-EAGLE, or a smaller model of its kind)" in offers["drafter"][0]
    (offer,) = gains(resolve(DEMO_TARGET, {"method": "none"}))["method"]
    assert offer.startswith("--method suffix drafts from earlier text") and "arctic" not in offer


def test_its_own_mtp_layers_are_offered_before_lookups(tmp_path: Path, small_tokenizer_file: Path) -> None:
    target = write_target(tmp_path, small_tokenizer_file, num_nextn_predict_layers=1)
    plan = resolve(str(target), {})
    assert (plan.value("engine"), plan.value("method")) == ("embedded", "suffix")
    assert gains(plan)["method"][0].startswith("--method mtp drafts with the target's own 1 MTP layer")
