"""The plan for what was asked: every value with its source, and a refusal of whatever cannot work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import Plan, Setting, embedded, hardware, recipe, resolve
from dovetail.plan.options import BY_NAME, GATE
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    write,
    write_index,
)
from tests.plan import pair as made
from tests.plan.conftest import Put
from tests.plan.pair import DRAFTER, VOCABULARY, write_drafter
from tests.plan.samples import SAMPLES

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


@pytest.fixture(scope="module")
def write_target(small_tokenizer_file: Path) -> WriteTarget:
    """Writes a target with a Kimi tokenizer."""
    return lambda folder, **changes: made.write_target(folder, small_tokenizer_file, **changes)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, write_target: WriteTarget) -> Path:
    """A folder with `target` and `drafter`, which the embedded engine can run."""
    folder = tmp_path_factory.mktemp("pair")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    return folder


def sources(plan: Plan) -> dict[str, str]:
    return {name: setting.source for name, setting in plan.settings.items()}


def said(plan: Plan, level: Any) -> str:
    return "\n".join(f"{each.setting}: {each.message}" for each in plan.advice_of(level))


# --- The pair that the embedded engine runs ---------------------------------------------------------------------------


def test_a_target_alone_runs_on_defaults(pair: Path) -> None:
    plan = resolve(str(pair / "target"), {})
    assert plan.settings["target"] == Setting(str(pair / "target"), "command line")
    assert set(sources(plan).values()) == {"command line", "default"}
    assert plan.settings.keys() == BY_NAME.keys()
    expected = {"drafter": None, "method": "suffix", "draft_tokens": 5, "engine": "embedded", "dtype": "float32"}
    expected |= {"format": "kimi_k25", "context": 1024, "max_batch": 16, "served_model_name": "target"}
    assert {name: plan.value(name) for name in expected} == expected
    assert plan.settings["gate"] == Setting("measured", "default") and plan.reason is None
    assert not plan.advice_of("warning") and not plan.advice_of("note")


def test_a_drafter_alone_is_enough(pair: Path) -> None:
    plan = resolve(str(pair / "drafter"), {})
    assert plan.settings["drafter"] == Setting(str(pair / "drafter"), "command line")
    assert plan.settings["target"] == Setting(str(pair / "target"), "drafter")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan == resolve(None, {"drafter": str(pair / "drafter")})
    assert plan.folders == {which: str(pair / which) for which in ("target", "drafter")} | {
        "tokenizer": str(pair / "target")
    }


def test_the_target_may_be_given_by_an_absolute_path(tmp_path: Path, write_target: WriteTarget) -> None:
    target = write_target(tmp_path / "somewhere" / "else")
    verifier = {"verifier": {"name_or_path": str(target)}}
    drafter = write_drafter(tmp_path / "drafter", speculators_config=DRAFTER["speculators_config"] | verifier)
    assert resolve(str(drafter), {}).settings["target"] == Setting(str(target), "drafter")


def test_the_folder_beside_the_drafter_goes_before_the_one_beside_the_user(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    write(tmp_path / "target", QWEN3_8B)
    monkeypatch.chdir(tmp_path / "here")
    assert resolve(str(pair / "drafter"), {}).value("target") == str(pair / "target")


def test_a_drafter_that_proposes_nothing_gets_the_default_length(tmp_path: Path, write_target: WriteTarget) -> None:
    verifier = {"verifier": {"name_or_path": "../target"}}
    write_target(tmp_path / "target")
    plan = resolve(str(write_drafter(tmp_path / "drafter", speculators_config=verifier)), {})
    assert plan.settings["draft_tokens"] == Setting(3, "default")


def test_without_a_model_the_demo_recipe_says_what_runs(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair / "demo.yaml").write_text("name: demo\nsource: here\nsettings: {target: target, drafter: ./drafter}")
    monkeypatch.setattr(recipe, "FOLDER", pair)
    plan = resolve(None, {})
    assert plan.settings["target"] == Setting(str(pair / "target"), "recipe demo")
    assert plan.settings["drafter"] == Setting(str(pair / "drafter"), "recipe demo")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan.recipes == ("demo",)
    without = resolve(None, {"drafter": "none"})
    assert without.settings["drafter"] == Setting(None, "command line")
    assert without.settings["target"].source == "recipe demo"
    assert without.settings["draft_tokens"] == Setting(0, "default")
    (pair / "drafting.yaml").write_text("drafter: drafter")
    assert resolve(None, {"drafter": "none"}, config=pair / "drafting.yaml") == without
    assert resolve(None, {}, recipe="none") == plan


def test_the_bundled_pair_runs_on_the_embedded_engine() -> None:
    plan = resolve(None, {})
    assert (plan.value("engine"), plan.value("method"), plan.value("draft_tokens")) == ("embedded", "eagle3", 3)
    assert not plan.advice
    assert plan.fit is not None
    assert plan.fit.each is None and plan.fit.cache_per_token == 4 * (11520 / 4 + 256)


# --- Precedence -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with targets and drafters for vLLM, tokenizers and keys, two of each, and no recipes."""
    folder = tmp_path_factory.mktemp("qwen")
    for which in ("a", "b"):
        write(folder / f"target-{which}", QWEN3_8B)
        write(folder / f"drafter-{which}", QWEN3_8B_EAGLE3)
        (folder / f"tokenizer-{which}").mkdir()
        (folder / f"tokenizer-{which}" / "tokenizer.json").touch()
        (folder / f"key-{which}").touch()
    return folder


def choices(folder: Path) -> dict[str, tuple[Any, ...]]:
    """For every setting: values that go with all values of all others."""
    paths = {
        name: (str(folder / f"{name}-a"), str(folder / f"{name}-b")) for name in ("target", "drafter", "tokenizer")
    }
    return paths | {
        "revision": ("main", "other", None),
        "trust_remote_code": (True, False),
        "engine": ("vllm", "http://127.0.0.1:8001"),
        "method": ("eagle3",),
        "draft_tokens": (1, 4),
        "draft_sampling": ("greedy", None),
        "draft_top_k": (1, None),
        "prompt_lookup_min": (8, 16),
        "draft_attention_backend": ("FLASH_ATTN", "TRITON_ATTN"),
        "draft_kv_cache_dtype": ("fp8", "bfloat16"),
        "draft_tensor_parallel_size": (1, None),
        "local_argmax": (True, False),
        "gate": ("measured", "off"),
        "max_draft_tokens": (4, 8),
        "speculate_below_context": (7000, None),
        "speculate_up_to_batch": (8, None),
        "dtype": ("auto", "bfloat16"),
        "quantization": ("fp8", None),
        "load_format": ("safetensors", "fastsafetensors"),
        "attention_backend": ("FLASH_ATTN", "FLASHINFER"),
        "kv_cache_dtype": ("fp8", "auto"),
        "context": (512, 1024),
        "max_batch": (1, 64),
        "max_batched_tokens": (2048, 4096),
        "gpu_memory_utilization": (0.8, 0.9),
        "kv_cache_memory_bytes": (10**11, None),
        "async_scheduling": (True, False),
        "prefix_caching": (True, False),
        "chunked_prefill": (True, False, None),
        "language_model_only": (True, False),
        "mm_processor_cache_gb": (0, 4),
        "mm_encoder_tp_mode": ("weights", "data"),
        "seed": (0, 1),
        "env": ({"A": "1"}, {"A": "2", "B": None}, {"B": "3"}),
        "gpus": ("8x B200", "16x H200"),
        "tensor_parallel_size": (1, 2),
        "pipeline_parallel_size": (1, 2),
        "data_parallel_size": (1, None),
        "decode_context_parallel_size": (1, None),
        "threads": (1, 2),
        "format": ("qwen3", "hermes"),
        "strict": ("schema", "names"),
        "retry_invalid": (1, 2),
        "no_repair": ("none", "call_id"),
        "served_model_name": ("a", "b"),
        "host": ("0.0.0.0", "::1"),
        "port": (8001, 8002),
        "api_key_file": (str(folder / "key-a"), str(folder / "key-b")),
        "grammar_backend": ("xgrammar", "guidance"),
        "engine_args": ("--enforce-eager", "--block-size 64"),
        "vllm": (str(folder / "key-a"), str(folder / "key-b")),
        "engine_log": (str(folder / "key-a"), str(folder / "key-b")),
        "engine_api_key_file": (str(folder / "key-a"), str(folder / "key-b")),
    }


Layers = dict[str, dict[str, Any]]


@st.composite
def layers(draw: st.DrawFn, *names: str) -> Callable[[Path], Layers]:
    """Some settings for each of `names`: which of its values, until the folder is known that some are in."""
    chosen = {name: draw(st.dictionaries(st.sampled_from(sorted(BY_NAME)), st.integers(0, 2))) for name in names}

    def of(folder: Path) -> Layers:
        values = choices(folder)
        return {
            source: {name: values[name][i % len(values[name])] for name, i in which.items()}
            for source, which in chosen.items()
        }

    return of


def test_there_are_choices_for_every_setting(qwen: Path) -> None:
    assert choices(qwen).keys() == BY_NAME.keys()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers("command line", "config file", "recipe both", "recipe one"))
def test_every_setting_is_what_the_strongest_layer_says_and_names_it(qwen: Path, of: Callable[[Path], Layers]) -> None:
    """Law 14, over all settings: command line > config file > recipes, the most specific first > drafter > default."""
    drafter = str(qwen / "drafter-a")
    stack = of(qwen)
    for source in ("command line", "config file"):
        stack[source].pop("drafter", None)  # of another drafter than theirs, recipes say nothing (a test below)
        stack[source].pop("env", None)
    stack["config file"].setdefault("target", str(qwen / "target-a"))
    for source, match in (("recipe both", "architecture: [Qwen3ForCausalLM], model_type: [qwen3]"), ("recipe one", "")):
        stack[source] |= {"drafter": drafter}
        stack[source].pop("target", None)  # what they are for is known before they are
        stack[source].pop("gpus", None)
        stack[source].pop("revision", None)
        match = match or "architecture: [Qwen3ForCausalLM]"
        said = {name: value for name, value in stack[source].items() if name != "env"}
        env = {name: {"why": "x", "value": value} for name, value in stack[source].pop("env", {}).items()}
        content = {"name": source.removeprefix("recipe "), "source": "here", "settings": said, "env": env}
        written = msgspec.yaml.encode(content) + f"match: {{{match}}}\n".encode()
        (qwen / "recipes").mkdir(exist_ok=True)
        (qwen / "recipes" / f"{content['name']}.yaml").write_bytes(written)
    (qwen / "config.yaml").write_bytes(msgspec.yaml.encode(stack["config file"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "FOLDER", qwen / "recipes")
        plan = resolve(None, stack["command line"], config=qwen / "config.yaml")
    stack["drafter"] = {"method": "eagle3", "draft_tokens": 3}
    for name, setting in plan.settings.items():
        if name != "env":
            winner = next((source for source, values in stack.items() if name in values), "default")
            assert setting.source == winner, name
            if winner != "default":
                assert setting.value == stack[winner][name]


ENV = st.dictionaries(st.sampled_from("ABC"), st.sampled_from(["1", "2", None]), max_size=3)


@given(config=ENV, recipe_file=ENV)
def test_environment_variables_are_merged_one_by_one(
    qwen: Path, config: dict[str, str | None], recipe_file: dict[str, str | None]
) -> None:
    (qwen / "env.yaml").write_bytes(msgspec.yaml.encode({"env": config}))
    variables = {name: {"why": "x"} | ({"value": value} if value else {}) for name, value in recipe_file.items()}
    content = {"name": "mine", "source": "here", "settings": {}, "env": variables}
    (qwen / "mine.yaml").write_bytes(msgspec.yaml.encode(content))
    plan = resolve(str(qwen / "target-a"), {}, config=qwen / "env.yaml", recipe=str(qwen / "mine.yaml"))
    given = {name: value for name, value in recipe_file.items() if value is not None}
    merged = given | config
    assert (plan.value("env") or {}) == merged
    assert {name: each.value for name, each in plan.variables.items()} == merged
    for name, variable in plan.variables.items():
        assert variable.source == ("config file" if name in config else "recipe mine")


def test_relative_paths_start_where_they_are_written(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair / "paths.yaml").write_text("target: target\ndrafter: drafter\n")
    monkeypatch.chdir(tmp_path)
    from_file = Setting(str(pair / "target"), "config file")
    assert resolve(None, {}, config=pair / "paths.yaml").settings["target"] == from_file
    monkeypatch.chdir(pair)
    assert resolve("target", {}).settings["target"] == Setting(str(pair / "target"), "command line")


def test_old_names_are_read_with_a_note(qwen: Path) -> None:
    (qwen / "old.yaml").write_text("speculative_config: {rejection_sample_method: probabilistic}\nmax_num_seqs: 4\n")
    plan = resolve(str(qwen / "target-a"), {"drafter": str(qwen / "drafter-a")}, config=qwen / "old.yaml")
    assert plan.settings["draft_sampling"] == Setting("probabilistic", "config file")
    assert plan.settings["max_batch"] == Setting(4, "config file")
    assert "config file: max_num_seqs is max_batch here" in said(plan, "note")


def test_a_plan_in_json_has_value_and_from(pair: Path) -> None:
    shown = json.loads(msgspec.json.encode(resolve(str(pair / "drafter"), {"port": 9000}).data()))
    assert shown["port"] == {"value": 9000, "from": "command line"}
    assert shown["gate"] == {"value": "measured", "from": "default"}
    before = "target drafter method draft_tokens gate format strict no_repair engine dtype context max_batch threads"
    assert {*before.split(), "served_model_name", "host", "port", "api_key_file"} <= shown.keys()
    assert (shown["warnings"], shown["notes"], shown["recipes"]) == ([], [], [])
    assert shown["looked"]["target"]["architecture"] == "DeepseekV3ForCausalLM"
    assert shown["looked"]["drafter"]["method"] == "eagle3"
    assert shown["fit"]["parameters"] > 0


# --- Who drafts -------------------------------------------------------------------------------------------------------


def drafting(plan: Plan) -> dict[str, Setting[Any]]:
    return {name: plan.settings[name] for name in ("drafter", "method", "draft_tokens")}


NONE = {"drafter": None, "method": None, "draft_tokens": 0}


@pytest.mark.parametrize(
    ("command_line", "config_file", "expected"),
    [
        ({"drafter": "none"}, {"drafter": "drafter-a", "draft_tokens": 4}, NONE),
        ({"drafter": "none"}, {"drafter": "drafter-a", "method": "eagle3"}, NONE),
        ({"drafter": "none"}, {"method": "ngram", "draft_tokens": 4}, NONE),
        ({"method": "none"}, {"drafter": "drafter-a", "draft_tokens": 4}, NONE),
        ({"method": "ngram"}, {"drafter": "drafter-a"}, {"drafter": None, "method": "ngram", "draft_tokens": 3}),
        ({"method": "suffix"}, {}, {"drafter": None, "method": "suffix", "draft_tokens": 24}),
        ({"drafter": "none", "method": "ngram"}, {}, {"drafter": None, "method": "ngram", "draft_tokens": 3}),
        ({"draft_tokens": 0}, {"drafter": "drafter-a"}, {"method": "eagle3", "draft_tokens": 0}),
        ({"draft_tokens": 5}, {"drafter": "drafter-a"}, {"method": "eagle3", "draft_tokens": 5}),
    ],
)
def test_a_stronger_none_overrules_a_weaker_drafter(
    qwen: Path, command_line: dict[str, Any], config_file: dict[str, Any], expected: dict[str, Any]
) -> None:
    (qwen / "drafts.yaml").write_bytes(msgspec.yaml.encode(config_file))
    plan = resolve(str(qwen / "target-a"), command_line, config=qwen / "drafts.yaml")
    found = drafting(plan)
    assert {name: found[name].value for name in expected} == expected
    for name in command_line:
        assert found[name].source == "command line"
    if plan.value("method") is None:
        assert {found[name].source for name in config_file} == {"command line"}


def test_ngram_lookup_matches_enough_unless_told_otherwise(qwen: Path) -> None:
    plan = resolve(str(qwen / "target-a"), {"method": "ngram"})
    assert plan.settings["prompt_lookup_min"] == Setting(8, "default")
    assert not any("tool calls" in each.message for each in plan.advice_of("warning"))
    assert "tool calls" in said(resolve(str(qwen / "target-a"), {"method": "ngram", "prompt_lookup_min": 4}), "warning")


def test_mtp_layers_inside_the_target_draft_where_asked(tmp_path: Path) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    plan = resolve(target, {"method": "mtp", "gpus": "8x H200"}, recipe="none")
    assert plan.settings["draft_tokens"] == Setting(1, "drafter")
    assert plan.drafter is not None and plan.drafter.config_format == "inside the target"
    assert (plan.value("drafter"), "drafter" in plan.folders) == (None, False)


def test_a_recipe_may_choose_mtp_and_may_be_overruled(tmp_path: Path) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    plan = resolve(target, {"gpus": "8x H200"})
    assert plan.recipes == ("deepseek-v3.2-h200",)
    assert plan.settings["method"] == Setting("mtp", "recipe deepseek-v3.2-h200")
    assert plan.settings["draft_tokens"] == Setting(3, "recipe deepseek-v3.2-h200")
    assert plan.settings["drafter"] == Setting(None, "default")
    assert resolve(target, {"gpus": "8x H200", "method": "mtp"}).value("draft_tokens") == 3
    for off in ("drafter", "method"):
        without = resolve(target, {"gpus": "8x H200", off: "none"})
        assert {name: setting.value for name, setting in drafting(without).items()} == NONE
        assert without.settings["tensor_parallel_size"].source == "recipe deepseek-v3.2-h200"
    write_index(tmp_path / "target", {"a.safetensors": ["model.layers.0.x"]}, total_size=1)
    with pytest.raises(
        PlanError, match=r"method is mtp \(recipe deepseek-v3.2-h200\) but .*weights hold none.*--method none"
    ):
        resolve(target, {"gpus": "8x H200"})


# --- Which engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        (QWEN3_8B, {"dtype": "bfloat16"}, "has no weights, which the embedded engine needs"),
        (QWEN3_8B, {}, "has 8B parameters, which take 33 GB in the embedded engine, and this machine has 24"),
        (QWEN3_8B, {"gpus": "H100", "dtype": "bfloat16"}, "gpus is H100 (command line) and the embedded engine"),
        (QWEN3_235B, {}, "architecture Qwen3MoeForCausalLM (model_type 'qwen3_moe') is not supported"),
        (KIMI_K25, {}, "architecture KimiK25ForConditionalGeneration"),
        (made.TARGET, {"tensor_parallel_size": 2}, "tensor_parallel_size is 2 (command line) and the embedded engine"),
        (
            made.TARGET,
            {"method": "ngram"},
            "method is ngram (command line) and the lookup method of the embedded engine",
        ),
        (QWEN3_8B | {"num_nextn_predict_layers": 1}, {"method": "mtp"}, "needs the MTP layers of a DeepSeek-V3"),
        (made.TARGET, {"dtype": "float16"}, "dtype is float16 (command line) and the embedded engine has float32 or"),
        (made.TARGET, {"quantization": "fp8"}, "quantization is fp8 (command line) and the embedded engine has int8"),
        (made.TARGET, {"kv_cache_dtype": "fp8"}, "and the embedded engine has auto or bfloat16"),
        (made.TARGET, {"attention_backend": "FLASH_ATTN"}, "and the embedded engine has auto or matmul or sdpa"),
        (made.TARGET | {"quantization_config": {"quant_method": "fp8"}}, {}, "quantization_config is set"),
    ],
)
def test_vllm_is_taken_where_the_embedded_engine_cannot_and_the_plan_says_why(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    target = write(tmp_path / "target", config)
    plan = resolve(target, options)
    assert plan.settings["engine"] == Setting("vllm", "default")
    assert re.fullmatch(rf"vLLM is (needed|chosen): .*{re.escape(reason)}.*", plan.reason or "")
    assert plan.reason is not None and plan.reason in said(plan, "note")
    assert plan.value("dtype") == options.get("dtype")  # left to the engine
    with pytest.raises(DovetailError, match=r"--engine vllm|another drafter or engine|incomplete"):
        resolve(target, options | {"engine": "embedded"})


def test_gpus_that_are_found_take_vllm_except_for_the_demo(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: hardware.parse("2x H100"))
    plan = resolve(str(pair / "drafter"), {})
    assert plan.value("engine") == "vllm"
    assert "this machine has 2x H100 and the embedded engine computes on the CPU" in (plan.reason or "")
    assert resolve(str(pair / "drafter"), {"engine": "embedded"}).value("engine") == "embedded"
    assert resolve(None, {}).value("engine") == "embedded"
    assert resolve(None, {"gpus": "H100"}).value("engine") == "vllm"


def test_gpus_of_a_recipe_take_vllm(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nsource: here\nsettings: {gpus: 8x B200}")
    plan = resolve(str(pair / "target"), {}, recipe=str(tmp_path / "mine.yaml"))
    assert "gpus is 8x B200 (recipe mine) and the embedded engine" in (plan.reason or "")
    assert resolve(str(pair / "target"), {"gpus": "auto"}).value("engine") == "embedded"


def test_a_model_that_this_machine_cannot_hold_takes_vllm(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "machine_memory", lambda: 1000)
    plan = resolve(str(pair / "drafter"), {})
    assert plan.value("engine") == "vllm"
    assert "parameters, which take" in (plan.reason or "")
    monkeypatch.setattr(embedded, "machine_memory", lambda: None)
    assert resolve(str(pair / "drafter"), {}).value("engine") == "embedded"
    monkeypatch.undo()
    assert (embedded.machine_memory() or 10**9) > 10**8


def test_an_engine_that_is_asked_for_otherwise_is_taken_where_nobody_says(pair: Path) -> None:
    assert resolve(str(pair / "target"), {}, engine="vllm").settings["engine"] == Setting("vllm", "default")
    assert resolve(str(pair / "target"), {"engine": "embedded"}, engine="vllm").value("engine") == "embedded"


def test_what_an_engine_has_no_setting_for_is_said(pair: Path, qwen: Path) -> None:
    options = {"seed": 1, "local_argmax": True, "revision": "main", "gpus": "H100", "engine": "embedded"}
    plan = resolve(str(pair / "target"), options)
    assert {each.setting for each in plan.advice_of("warning")} == {"local_argmax", "seed"}
    assert "seed is 1 (command line): the embedded engine has no such setting" in said(plan, "warning")
    plan = resolve(str(qwen / "target-a"), {"threads": 2, "seed": 1})
    assert "threads is 2 (command line): vLLM has no such setting" in said(plan, "warning")
    assert "seed" not in said(plan, "warning")


def test_a_server_that_runs_has_its_own_settings(qwen: Path) -> None:
    plan = resolve(str(qwen / "target-a"), {"engine": "http://127.0.0.1:8001"})
    assert "the server at http://127.0.0.1:8001 has settings of its own, which this plan must agree with" in said(
        plan, "note"
    )


def test_more_drafts_than_the_embedded_engine_takes_are_fine_elsewhere(tmp_path: Path) -> None:
    target, drafter = write(tmp_path / "target", QWEN3_8B), write(tmp_path / "drafter", QWEN3_8B_DFLASH)
    assert resolve(target, {"drafter": drafter}).settings["draft_tokens"] == Setting(15, "drafter")


# --- The gate ---------------------------------------------------------------------------------------------------------


def gate(plan: Plan) -> dict[str, Setting[Any]]:
    return {name: plan.settings[name] for name in GATE}


UNSAID = {name: Setting(None, "default") for name in GATE}
MEASURED = UNSAID | {"gate": Setting("measured", "default"), "max_draft_tokens": Setting(8, "default")}


def test_where_the_embedded_engine_drafts_the_gate_measures_unless_it_is_off(pair: Path) -> None:
    for model in ("target", "drafter"):
        assert gate(resolve(str(pair / model), {})) == MEASURED
    off = Setting("off", "command line")
    assert gate(resolve(str(pair / "drafter"), {"gate": "off"})) == UNSAID | {"gate": off}


def test_how_much_somebody_says_is_drafted_is_the_most_that_is(pair: Path) -> None:
    unlimited = MEASURED | {"max_draft_tokens": Setting(None, "default")}
    assert gate(resolve(str(pair / "drafter"), {"draft_tokens": 2})) == unlimited
    (pair / "two.yaml").write_text("draft_tokens: 2\n")
    assert gate(resolve(str(pair / "drafter"), {}, config=pair / "two.yaml")) == unlimited
    assert resolve(str(pair / "drafter"), {}).settings["draft_tokens"] == Setting(2, "drafter")


@pytest.mark.parametrize("nothing", [{"drafter": None}, {"method": None}, {"draft_tokens": 0}], ids=str)
def test_where_nothing_drafts_there_is_no_gate(pair: Path, nothing: dict[str, Any]) -> None:
    plan = resolve(str(pair / "target"), nothing)
    assert gate(plan) == UNSAID and not plan.advice_of("warning")


def test_a_drafter_that_is_turned_off_takes_a_weaker_gate_with_it(pair: Path) -> None:
    (pair / "gated.yaml").write_text("max_draft_tokens: 4\nspeculate_up_to_batch: 2\ngate: off\n")
    plan = resolve(str(pair / "target"), {"drafter": None}, config=pair / "gated.yaml")
    assert {setting.value for setting in gate(plan).values()} == {None} and not plan.advice_of("warning")


def test_limits_are_the_embedded_engines_too(pair: Path) -> None:
    limits = {"max_draft_tokens": 4, "speculate_below_context": 500, "speculate_up_to_batch": 2}
    plan = resolve(str(pair / "drafter"), limits)
    assert gate(plan) == MEASURED | {name: Setting(value, "command line") for name, value in limits.items()}
    assert not plan.advice_of("warning")


def test_the_gate_of_vllm_is_a_scheduler_that_has_to_be_installed_there(qwen: Path) -> None:
    asked = {"drafter": str(qwen / "drafter-a")} | {name: SAMPLES[name][0] for name in GATE}
    plan = resolve(str(qwen / "target-a"), asked)
    assert "gate is measured (command line), speculate_below_context is 7000 (command line)" in said(plan, "note")
    assert "`pip install dovetail[vllm]` where vLLM runs" in said(plan, "note")
    assert not any(name in said(plan, "warning") for name in GATE)
    assert gate(resolve(str(qwen / "target-a"), {"drafter": str(qwen / "drafter-a")})) == UNSAID
    assert "gate" not in said(resolve(str(qwen / "target-a"), {"gate": "off"}), "warning")  # it is what vLLM does


@pytest.mark.parametrize(
    ("command_line", "config_file", "expected"),
    [
        ({"max_draft_tokens": 1}, {}, {"draft_tokens": (1, "command line")}),
        ({"max_draft_tokens": 1}, {"draft_tokens": 3}, {"draft_tokens": (1, "command line")}),
        ({"max_draft_tokens": 5}, {}, {"draft_tokens": (2, "drafter")}),
        ({"draft_tokens": 3}, {"max_draft_tokens": 1}, {"max_draft_tokens": (3, "command line")}),
        ({"draft_tokens": 3}, {"max_draft_tokens": 5}, {"max_draft_tokens": (5, "config file")}),
        ({"draft_tokens": 3, "max_draft_tokens": 3}, {}, {"draft_tokens": (3, "command line")}),
        ({"max_draft_tokens": None}, {"draft_tokens": 3}, {"draft_tokens": (3, "config file")}),
    ],
    ids=str,
)
def test_of_a_length_and_a_smaller_limit_the_stronger_is_both(
    pair: Path, command_line: dict[str, Any], config_file: dict[str, Any], expected: dict[str, tuple[int, str]]
) -> None:
    (pair / "limits.yaml").write_bytes(msgspec.yaml.encode(config_file))
    plan = resolve(str(pair / "drafter"), command_line, config=pair / "limits.yaml")
    for name, (value, source) in expected.items():
        assert plan.settings[name] == Setting(value, source)


def test_a_limit_below_the_length_that_is_said_beside_it_is_refused(pair: Path) -> None:
    told = r"^max_draft_tokens is 2 \(command line\) but draft_tokens is 3 \(command line\): .* leave one of them out$"
    with pytest.raises(PlanError, match=told):
        resolve(str(pair / "drafter"), {"draft_tokens": 3, "max_draft_tokens": 2})


# --- GPUs and context -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "gpus", "tensor", "context"),
    [
        (QWEN3_8B, "8x B200", 1, 40960),
        (QWEN3_8B, "4x24GB", 2, 40960),
        (QWEN3_8B, "24GB", 1, None),
        (DEEPSEEK_V32, "8x B200", 8, 163840),
        (KIMI_K25, "8x96GB", 8, None),
        (KIMI_K25, "16x H100", 16, 262144),
        (QWEN3_8B, None, None, 40960),
    ],
)
def test_a_model_takes_the_fewest_gpus_that_hold_the_whole_context(
    tmp_path: Path, config: dict[str, Any], gpus: str | None, tensor: int | None, context: int | None
) -> None:
    target = write(tmp_path / "target", config)
    plan = resolve(target, {} if gpus is None else {"gpus": gpus}, recipe="none")
    assert plan.settings["tensor_parallel_size"] == Setting(tensor, "default")
    whole = plan.target.context if plan.target else 0
    if context is None:
        assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.fits
        assert 4096 <= plan.value("context") < whole
        assert f"context is {plan.value('context'):,}, which fits on {plan.gpus}: {whole:,}" in said(plan, "warning")
    else:
        assert plan.settings["context"] == Setting(context, "default")


@pytest.mark.parametrize(
    ("config", "gpus", "said", "tensor"),
    [
        (QWEN3_235B, "8x H200", {"data_parallel_size": 2}, 2),  # experts are spread over replicas too
        (QWEN3_235B, "8x H200", {"pipeline_parallel_size": 4}, 1),
        (QWEN3_235B, "8x H200", {"pipeline_parallel_size": 2}, 2),
        (DEEPSEEK_V32, "16x H100", {"decode_context_parallel_size": 2}, 16),
        (QWEN3_8B, "8x H100", {"data_parallel_size": 8}, 1),
        (QWEN3_8B, "6x24GB", {"data_parallel_size": 2}, 2),
    ],
)
def test_sizes_that_are_said_leave_the_others_to_be_chosen(
    tmp_path: Path, config: dict[str, Any], gpus: str, said: dict[str, int], tensor: int
) -> None:
    plan = resolve(write(tmp_path / "target", config), {"gpus": gpus, "engine": "vllm"} | said, recipe="none")
    assert plan.settings["tensor_parallel_size"] == Setting(tensor, "default")
    assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.fits


def test_memory_that_is_said_for_the_cache_is_what_it_has(tmp_path: Path) -> None:
    target = write(tmp_path / "target", QWEN3_8B)
    plan = resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**10})
    assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.room == 10**10
    with pytest.raises(PlanError, match=r"does not fit on 1x H100"):
        resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**9, "context": 40960})
    all_of_it = resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**12}).fit
    assert all_of_it is not None and all_of_it.each is not None and all_of_it.each.room < 80 * 10**9


def test_the_cache_of_the_embedded_engine_is_reckoned_as_it_is_stored(pair: Path) -> None:
    def bytes_a_token(**said: Any) -> float:
        fit = resolve(str(pair / "drafter"), said).fit
        assert fit is not None and fit.cache_per_token is not None
        return fit.cache_per_token

    whole, half = bytes_a_token(), bytes_a_token(kv_cache_dtype="bfloat16")
    assert whole == 2 * half == 2 * bytes_a_token(dtype="bfloat16")
    its = bytes_a_token(kv_cache_dtype="auto", draft_kv_cache_dtype="bfloat16")
    assert half < its < whole
    assert bytes_a_token(kv_cache_dtype="bfloat16", draft_kv_cache_dtype="auto") == whole + half - its


def test_a_context_that_is_asked_for_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"does not fit on 1x 16GB GPU .*What would help"):
        resolve(write(tmp_path / "target", QWEN3_8B), {"gpus": "16GB", "context": 40960})


def test_the_drafters_limit_is_the_context_that_is_taken(tmp_path: Path) -> None:
    layer = QWEN3_8B_EAGLE3["transformer_layer_config"] | {
        "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    }
    target = write(tmp_path / "target", QWEN3_8B)
    drafter = write(tmp_path / "drafter", QWEN3_8B_EAGLE3, transformer_layer_config=layer)
    plan = resolve(target, {"drafter": drafter, "gpus": "H100"})
    assert plan.settings["context"] == Setting(8192, "default")
    assert "the target alone supports 40960 tokens" in said(plan, "advice")


def test_gpus_that_are_here_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    assert "nvidia-smi finds no GPU here" in said(resolve(target, {"gpus": "auto"}), "warning")
    monkeypatch.setattr(hardware, "detect", lambda: hardware.parse("8x H200"))
    for options in ({}, {"gpus": "auto"}):
        plan = resolve(target, options)
        assert plan.recipes == ("deepseek-v3.2-h200",)
        assert plan.fit is not None and plan.fit.gpus == "8x H200"
    assert resolve(target, {}).settings["gpus"] == Setting("8x H200", "default")


# --- Recipes ----------------------------------------------------------------------------------------------------------


def test_the_recipe_for_the_model_the_gpus_and_what_was_said_is_taken(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"})
    assert plan.recipes == ("kimi-k2.5-sm120-dcp4",)
    assert plan.settings["target"] == Setting("moonshotai/Kimi-K2.5", "command line")
    assert plan.settings["decode_context_parallel_size"] == Setting(4, "recipe kimi-k2.5-sm120-dcp4")
    assert plan.settings["speculate_below_context"] == Setting(7000, "recipe kimi-k2.5-sm120-dcp4")
    asked = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000", "decode_context_parallel_size": 8, "port": 9})
    assert asked.recipes == ("kimi-k2.5-sm120-dcp8", "kimi-k2.5-sm120-dcp4")
    assert asked.settings["decode_context_parallel_size"] == Setting(8, "command line")
    assert asked.settings["attention_backend"] == Setting("TRITON_MLA", "recipe kimi-k2.5-sm120-dcp8")
    assert resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"}, recipe="none").recipes == ()


def test_a_recipe_can_be_named_whatever_it_is_for(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)
    plan = resolve(None, {"gpus": "8x B200"}, recipe="kimi-k2.5-sm120-dcp8")
    assert plan.settings["target"] == Setting("moonshotai/Kimi-K2.5", "recipe kimi-k2.5-sm120-dcp8")
    assert plan.settings["decode_context_parallel_size"] == Setting(8, "recipe kimi-k2.5-sm120-dcp8")
    assert "recipe kimi-k2.5-sm120-dcp8 is for something else" in said(plan, "warning")
    for unknown in ({}, {"gpus": "8x96GB"}):
        assert "was named" not in said(resolve(None, unknown, recipe="kimi-k2.5-sm120-dcp8"), "warning")


def test_a_named_recipe_brings_the_drafter_that_it_is_for(put: Put) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    plan = resolve(None, {}, recipe="qwen3-8b-eagle3")
    assert plan.settings["drafter"] == Setting("RedHatAI/Qwen3-8B-speculator.eagle3", "recipe qwen3-8b-eagle3")
    assert plan.settings["draft_tokens"] == Setting(3, "drafter")
    assert resolve(None, {"drafter": "none"}, recipe="qwen3-8b-eagle3").value("method") is None


def test_with_another_drafter_a_recipe_says_nothing_of_drafting(put: Put, tmp_path: Path) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    other = write(tmp_path / "other", KIMI_EAGLE3)
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000", "drafter": other})
    assert plan.value("drafter") == other
    assert plan.settings["attention_backend"].source == "recipe kimi-k2.5-sm120-dcp4"
    drafting_sources = {plan.settings[name].source for name, option in BY_NAME.items() if option.group == "drafting"}
    assert drafting_sources == {"command line", "drafter", "default"}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("kimi-k2.5-sm120-dcp5", r"there is no recipe .*did you mean kimi-k2.5-sm120-dcp"),
        ("zzz", r"there is no recipe 'zzz', and no file of that name; the recipes are deepseek-v3.2-b200, "),
        ("zzz.yaml", r"recipe zzz.yaml cannot be read"),
        ("{folder}/bad.yaml", r"recipe .*bad.yaml cannot be read: .*missing required field `source`"),
        ("{folder}/nobody.yaml", r"recipe nobody names no model: give MODEL"),
    ],
)
def test_a_recipe_that_is_none_is_refused(tmp_path: Path, named: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text("name: a\nsettings: {}")
    (tmp_path / "nobody.yaml").write_text("name: nobody\nsource: here\nsettings: {port: 1}")
    with pytest.raises(PlanError, match=message):
        resolve(None, {}, recipe=named.format(folder=tmp_path))


# --- Models on the hub ------------------------------------------------------------------------------------------------


def test_a_drafter_on_the_hub_alone_is_enough_and_ids_stay_ids(put: Put) -> None:
    folder = put("Qwen/Qwen3-8B", QWEN3_8B)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    engine = {"tensor_parallel_size": 2, "seed": 42, "max_model_len": 4096}
    plan = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", engine)
    assert plan.settings["target"] == Setting("Qwen/Qwen3-8B", "drafter")
    assert plan.settings["drafter"] == Setting("RedHatAI/Qwen3-8B-speculator.eagle3", "command line")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    expected = {"tensor_parallel_size": 2, "seed": 42, "context": 4096, "draft_tensor_parallel_size": None}
    assert {name: plan.value(name) for name in expected} == expected
    assert plan.value("served_model_name") == "Qwen/Qwen3-8B"
    assert plan.folders["target"] == str(folder)
    assert plan.target is not None and plan.target.path == "Qwen/Qwen3-8B"


def test_tokenizer_and_revision_stay_the_users(put: Put, tmp_path: Path) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").touch()
    options = {"tokenizer": str(tmp_path / "mine"), "revision": "main"}
    plan = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", options)
    assert plan.settings["tokenizer"] == Setting(str(tmp_path / "mine"), "command line")
    assert plan.settings["revision"] == Setting("main", "command line")
    assert plan.folders["tokenizer"] == str(tmp_path / "mine")
    absent = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", {"revision": "of-the-target"})
    assert "Qwen/Qwen3-8B could not be read" in said(absent, "warning")
    with pytest.raises(CheckpointError, match=r"tokenizer is .* but it has neither tokenizer.json nor"):
        resolve("Qwen/Qwen3-8B", {"tokenizer": str(tmp_path)})


def test_what_only_a_recipe_knows_is_planned_for_with_a_warning(put: Put) -> None:
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"})
    assert (plan.target, plan.drafter, plan.fit) == (None, None, None)
    assert (plan.value("engine"), plan.value("context")) == ("vllm", None)
    warned = said(plan, "warning")
    assert (
        "target: moonshotai/Kimi-K2.5 could not be read, so sizes and fit are unchecked and the plan follows the recipe"
        in warned
    )
    assert "drafter: lightseekorg/kimi-k2.5-eagle3-mla could not be read" in warned
    assert "because no other fits" not in warned
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x96GB"})
    assert plan.recipes == ("kimi-k2.5-sm120-dcp4",)
    assert "recipe kimi-k2.5-sm120-dcp4 is used because no other fits, but may not suit these GPUs" in said(
        plan, "warning"
    )
    assert resolve("moonshotai/Kimi-K2.5", {}, recipe="kimi-k2.5-sm120-dcp8").value("draft_tokens") == 3
    json.dumps(plan.data())
    with_tokenizer = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x96GB", "tokenizer": "org/tokenizer"})
    assert "tokenizer: org/tokenizer could not be read" in said(with_tokenizer, "warning")


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("Qwen/Qwen3-8B", {}, None),
        ("moonshotai/Kimi-K2.5", {"gpus": "8x B200"}, None),
        ("moonshotai/Kimi-K2.5", {"gpus": "8x96GB"}, "none"),
        ("moonshotai/Kimi-K2.5", {"gpus": "4x96GB"}, None),
    ],
)
def test_what_nobody_knows_is_refused(put: Put, model: str, options: dict[str, Any], named: str | None) -> None:
    with pytest.raises(CheckpointError, match=rf"^there is no folder {model}, and no hub here$"):
        resolve(model, options, recipe=named)


def test_the_embedded_engine_needs_a_look(put: Put) -> None:
    with pytest.raises(PlanError, match=r"engine is embedded \(command line\) but the target could not be read"):
        resolve("moonshotai/Kimi-K2.5", {"engine": "embedded"})


def test_a_drafter_that_cannot_be_looked_at_is_taken_if_it_is_said_how_it_drafts(put: Put, tmp_path: Path) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    with pytest.raises(CheckpointError, match=r"no folder org/drafter"):
        resolve("Qwen/Qwen3-8B", {"drafter": "org/drafter"})
    plan = resolve("Qwen/Qwen3-8B", {"drafter": "org/drafter", "method": "eagle3", "draft_tokens": 2})
    assert "org/drafter could not be read, so whether it fits is unchecked" in said(plan, "warning")
    with pytest.raises(CheckpointError, match=r"no folder .*nowhere"):
        resolve("Qwen/Qwen3-8B", {"drafter": str(tmp_path / "nowhere"), "method": "eagle3"})
    put("org/small", made.TARGET)
    for method, engine in (("eagle3", "embedded"), ("dflash", "vllm")):
        said_so = {"drafter": "org/drafter", "method": method, "format": "kimi_k25"}
        assert resolve("org/small", said_so).value("engine") == engine
    with pytest.raises(PlanError, match=r"method is dflash \(command line\) and the embedded engine drafts by eagle3,"):
        resolve("org/small", {"drafter": "org/drafter", "method": "dflash", "engine": "embedded"})


def test_weights_of_a_model_on_the_hub_may_be_elsewhere(put: Put, small_tokenizer_file: Path) -> None:
    folder = put("org/small", made.TARGET)
    (folder / "tokenizer.json").write_bytes(small_tokenizer_file.read_bytes())
    plan = resolve("org/small", {})
    assert plan.value("engine") == "embedded"
    assert "the weights of org/small are not here: `hf download org/small` fetches them" in said(plan, "warning")
    (folder / "model.safetensors").touch()
    assert not resolve("org/small", {}).advice_of("warning")


# --- What cannot work -------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"port": 0}, r"command line: port is 0: expected int >= 1"),
    ({"port": 70000}, r"port is 70000: expected int <= 65535"),
    ({"draft_tokens": 65}, r"draft_tokens is 65: expected int <= 64"),
    ({"draft_tokens": -1}, r"draft_tokens is -1: expected int >= 0"),
    (
        {"draft_tokens": 3, "engine": "vllm"},
        r"draft_tokens is 3 \(command line\) but drafter is none \(default\): name a drafter",
    ),
    ({"drafter": "none", "draft_tokens": 1}, r"drafter is none \(command line\)"),
    ({"method": "none", "draft_tokens": 1}, r"draft_tokens is 1 \(command line\) but drafter is none"),
    ({"strict": "very"}, r"strict is 'very'"),
    ({"no_repair": "call_id, ids"}, r"no_repair is 'call_id, ids': there is no repair ' ids'; there are .*all, none$"),
    ({"no_repair": True}, r"no_repair is True: expected str"),
    ({"engine": "vlm"}, r"command line: engine is 'vlm': it can be embedded, vllm, or the URL of a running server"),
    ({"engine": "sglang"}, r"engine is 'sglang': start it with the command that `dovetail plan --emit sglang` prints"),
    ({"engine": "ftp://here"}, r"engine is 'ftp://here'"),
    ({"format": "nonesuch"}, r"format is 'nonesuch' \(command line\): no format or checkpoint folder"),
    ({"context": 2048}, r"context is 2048 \(command line\) but .* was made for 1024"),
    ({"draft_token": 3}, r"there is no setting 'draft_token'; did you mean draft_tokens"),
    ({"zzz": 3}, r"there is no setting 'zzz'; the settings are target, drafter"),
    ({"api_key_file": "/nonexistent/key"}, r"there is no file /nonexistent/key"),
    (
        {"dtype": "float16", "engine": "embedded"},
        r"dtype is float16 \(command line\) and the embedded engine has float32 or bfloat16: --engine vllm",
    ),
    ({"dtype": "auto", "engine": "embedded"}, r"dtype is auto"),
    ({"quantization": "fp8", "engine": "embedded"}, r"quantization is fp8 .*the embedded engine has int8: --engine"),
    ({"kv_cache_dtype": "fp8", "engine": "embedded"}, r"kv_cache_dtype is fp8 .*the embedded engine has auto or bf"),
    ({"draft_kv_cache_dtype": "nvfp4", "engine": "embedded"}, r"draft_kv_cache_dtype is nvfp4 .*has auto or bfloat16"),
    ({"attention_backend": "SDPA", "engine": "embedded"}, r"attention_backend is SDPA .*has auto or matmul or sdpa"),
    ({"draft_attention_backend": "x", "engine": "embedded"}, r"draft_attention_backend is x .*auto or matmul or sdpa"),
    (
        {"chunked_prefill": False, "max_batched_tokens": 1024},
        r"chunked_prefill is False .*max_batched_tokens is 1024 .*a step has up to 16384 tokens \(max_batch is 16",
    ),
    (
        {"draft_tokens": 9},
        r"draft_tokens is 9 \(command line\), but the embedded engine drafts at most 8 tokens a step",
    ),
    ({"gpus": "8x B2000"}, r"^command line: gpus is '8x B2000': no kind is called 'B2000'; did you mean B200"),
    ({"engine": "embedded", "tensor_parallel_size": 2}, r"the embedded engine runs on one device: --engine vllm"),
    (
        {"engine": "embedded", "method": "ngram"},
        r"engine is embedded .*the lookup method of the embedded engine is suffix: --engine vllm",
    ),
    ({"method": "mtp"}, r"method is mtp \(command line\) but .* has no MTP layers inside"),
    (
        {"local_argmax": True, "draft_sampling": "probabilistic"},
        r"local_argmax is True .*draft_sampling is probabilistic",
    ),
    ({"method": "ngram", "prompt_lookup_min": 2}, r"prompt_lookup_min is 2 .*--prompt-lookup-min 8"),
    ({"draft_top_k": 4}, r"draft_top_k is 4 .*strict is schema \(default\) and a grammar follows one chain"),
]


@pytest.mark.parametrize(
    ("options", "message"), REFUSALS, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_settings_that_cannot_work_are_refused(pair: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        resolve(str(pair / "target"), options)
    assert re.fullmatch(r"[^\n]+", refusal.value.message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"draft_tokens": 9},
            r"draft_tokens is 9 \(command line\), but the embedded engine drafts at most 8 tokens a step",
        ),
        ({"method": "ngram"}, r"method is ngram \(command line\) but drafter is .*: leave one of them out"),
        ({"method": "none"}, r"method is none \(command line\) but drafter is"),
        ({"method": "dflash"}, r"method is dflash \(command line\) but .* drafts by eagle3"),
    ],
)
def test_settings_that_do_not_go_with_the_drafter_are_refused(
    pair: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        resolve(str(pair / "target"), {"drafter": str(pair / "drafter")} | options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 8000", r"config file: there is no setting 'prot'; did you mean port\?"),
        ("port: eight", r"config file: port is 'eight': expected int"),
        ("- port", r"must map settings to values"),
        ("8000: port", r"there is no setting '8000'"),
        ("port: 1\nport: 2", r"is not valid YAML: the key 'port' is repeated \(line 2\)"),
        ('target: "~a\\0b"', r"target is '~a\\x00b': it contains a NUL"),
        ('tokenizer: "~\\0"', r"tokenizer is .*NUL"),
        ('env: {A: "\\0"}', r"A contains a NUL"),
        ("seed: 99999999999999999999", r"seed is 9+: expected int <= 4294967295"),
        ("max_batched_tokens: 99999999999999", r"expected int <= 2147483647"),
        ("speculate_below_context: 99999999999999", r"expected int <= 2147483647"),
        (f"port: {[1] * 99}", r"^config file: port is .{80}: expected int, got array$"),
        ("port: [", r"is not valid YAML"),
        ("\xff", r"is not valid YAML"),
        (None, r"cannot be read: No such file"),
    ],
)
def test_a_bad_config_file_is_refused(pair: Path, tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=message) as refusal:
        resolve(str(pair / "target"), {}, config=file)
    assert "\n" not in refusal.value.message


def test_an_empty_config_file_says_nothing(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert resolve(str(pair / "target"), {}, config=tmp_path / "empty.yaml") == resolve(str(pair / "target"), {})


LAYER = DRAFTER["transformer_layer_config"]
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"target_hidden_size": 64}, r"hidden states 64 wide .*the target's hidden_size is 32"),
    "vocabulary": (
        {"transformer_layer_config": LAYER | {"vocab_size": 9}},
        rf"vocab_size is 9, the target's vocab_size is {VOCABULARY}",
    ),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}, r"\[1, 29, 57\]"),
    "kind": ({"speculators_model_type": "nonesuch"}, r"speculators_model_type is 'nonesuch', not one of"),
    "no target": ({"speculators_config": {}}, r"whose config names no target: give the target as MODEL"),
    "too long": (
        {
            "speculators_config": DRAFTER["speculators_config"]
            | {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 12}]}
        },
        r"draft_tokens is 12 \(drafter\), but the embedded engine drafts at most 8",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_drafter_that_does_not_fit_is_refused(
    tmp_path: Path, write_target: WriteTarget, put: Put, misfit: str
) -> None:
    changes, message = MISFITS[misfit]
    write_target(tmp_path / "target")
    with pytest.raises(DovetailError, match=message) as refusal:
        resolve(str(write_drafter(tmp_path / "drafter", **changes)), {})
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "/home/trainer/models/Qwen3-8B"])
def test_a_drafter_whose_target_cannot_be_reached_is_planned_for_alone(tmp_path: Path, put: Put, target: str) -> None:
    drafter = DRAFTER["speculators_config"] | {"verifier": {"name_or_path": target}}
    plan = resolve(str(write_drafter(tmp_path / "drafter", speculators_config=drafter)), {})
    assert plan.settings["target"] == Setting(target, "drafter")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan.target is None and plan.fit is None and plan.drafter is not None
    assert (
        f"{target} could not be read, so sizes and fit are unchecked and the plan follows the drafter alone: there is "
        "no folder"
    ) in said(plan, "warning")
    assert "drafts by eagle3, 1 layer of mqa, hidden states of width 32, a vocabulary of 384" in said(plan, "note")
    with pytest.raises(PlanError, match="engine is embedded"):
        resolve(plan.drafter.path, {"engine": "embedded"})


def test_a_drafter_of_another_method_takes_vllm(tmp_path: Path, write_target: WriteTarget) -> None:
    target = write_target(tmp_path / "target")
    block = {"mask_token_id": 1, "target_layer_ids": [1]}
    drafter = write(
        tmp_path / "drafter", LAYER | {"architectures": ["DFlashDraftModel"], "block_size": 4, "dflash_config": block}
    )
    plan = resolve(str(target), {"drafter": drafter})
    assert (plan.value("method"), plan.value("engine"), plan.value("draft_tokens")) == ("dflash", "vllm", 3)
    assert "drafts by dflash, and the embedded engine drafts with" in (plan.reason or "")


def test_a_plain_drafter_does_not_stand_alone(tmp_path: Path) -> None:
    drafter = write(tmp_path / "drafter", KIMI_EAGLE3_MLA)
    with pytest.raises(PlanError, match=r"whose config names no target"):
        resolve(drafter, {})


def test_two_drafters_are_refused(pair: Path, tmp_path: Path) -> None:
    other = write_drafter(tmp_path / "other")
    with pytest.raises(PlanError, match=r"is a drafter, and so is"):
        resolve(str(pair / "drafter"), {"drafter": str(other)})
    with pytest.raises(PlanError, match=r"is a drafter, but drafter is none: give the target as the model, or"):
        resolve(str(pair / "drafter"), {"drafter": "none"})


def test_a_folder_of_ones_own_is_whole_or_refused(tmp_path: Path, write_target: WriteTarget) -> None:
    def refused(model: Path, message: str, **options: Any) -> None:
        with pytest.raises(CheckpointError, match=message) as refusal:
            resolve(str(model), {"engine": "embedded"} | options)
        assert "\n" not in refusal.value.message

    refused(tmp_path / "nowhere", r"there is no folder .*nowhere")
    refused(tmp_path, r"has no config\.json")
    target = write_target(tmp_path / "target")
    (target / "tokenizer.json").unlink()
    refused(target, r"incomplete: it has neither tokenizer\.json nor tiktoken\.model")
    refused(target, r"incomplete: it has no tokenizer", engine="vllm")
    (target / "model.safetensors").unlink()
    refused(target, r"incomplete: it has neither model\.safetensors nor")
    (target / "tokenizer.json").touch()
    write_index(target, {"model-1-of-2.safetensors": ["a"], "model-2-of-2.safetensors": ["b"]})
    refused(target, r"incomplete: it has none of the 2 files")
    (target / "model-1-of-2.safetensors").touch()
    refused(target, r"incomplete: it has 1 of the 2 files")
    (target / "config.json").write_text("{")
    refused(target, r"config\.json cannot be read as JSON")
    (target / "config.json").write_text("[]")
    refused(target, r"must hold a JSON object")


def test_a_config_alone_can_be_planned_for_on_another_engine(tmp_path: Path) -> None:
    plan = resolve(write(tmp_path / "target", QWEN3_8B), {})
    assert "has no weights: their size is estimated" in said(plan, "warning")


def test_every_config_of_the_shared_ones_is_planned_for_or_refused_by_name(
    shared_data: Path, tmp_path: Path, put: Put
) -> None:
    """Whatever lies in a folder, a plan is made or one line says why not."""
    for number, file in enumerate(sorted((shared_data / "configs").rglob("*.json"))):
        folder = write(tmp_path / str(number), json.loads(file.read_text()))
        try:
            plan: Mapping[str, Any] = resolve(folder, {"gpus": "8x B200"}).data()
        except DovetailError as error:
            assert folder in error.message and "\n" not in error.message
        else:
            assert plan["looked"]["target"] or plan["looked"]["drafter"]
