"""Law 14: the strongest source decides: command line > config file > recipe > drafter > default."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.plan import Setting, recipe, resolve
from dovetail.plan.options import BY_NAME
from tests.examples import examples
from tests.plan.samples import SAMPLES

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


def choices(folder: Path) -> dict[str, tuple[Any, ...]]:
    """For every setting the samples, or other values that go with all values of all other settings."""
    files = {name: tuple(str(folder / f"key-{each}") for each in "ab") for name in FILES}
    paths = {name: tuple(str(folder / f"{name}-{each}") for each in "ab") for name in CHECKPOINTS}
    return SAMPLES | files | paths | COMPATIBLE


FILES = (
    "api_key_file",
    "api_keys",
    "record_key_file",
    "vllm",
    "engine_log",
    "engine_api_key_file",
    "response_store",
    "memory_store",
    "record",
)
CHECKPOINTS = ("target", "drafter", "tokenizer")
COMPATIBLE: dict[str, tuple[Any, ...]] = {
    "engine": ("vllm", "http://127.0.0.1:8001"),
    "method": ("eagle3",),
    "draft_tokens": (1, 4),
    "max_draft_tokens": (4, 8),
    "kv_cache_memory_bytes": (1 << 36, 10**11),
    "max_batch": (1, 128),
    "max_batched_tokens": (4096, 32768),
    "draft_sampling": ("greedy", None),
    "draft_top_k": (1, None),
    "draft_tensor_parallel_size": (1, None),
    "speculate_below_context": (7000, None),
    "quantization": ("fp8", None),
    "context": (512, 1024),
    "chunked_prefill": (True, False, None),
    "env": ({"A": "1"}, {"A": "2", "B": None}, {"B": "3"}),
    "gpus": ("8x B200", "16x H200"),
    "tensor_parallel_size": (1, 2),
    "pipeline_parallel_size": (1, 2),
    "data_parallel_size": (1, None),
    "decode_context_parallel_size": (1, None),
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


@pytest.mark.slow
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers("command line", "config file", "recipe both", "recipe one"))
def test_the_strongest_source_decides_every_setting(qwen: Path, of: Callable[[Path], Layers]) -> None:
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
        values = {name: value for name, value in stack[source].items() if name != "env"}
        env = {name: {"why": "x", "value": value} for name, value in stack[source].pop("env", {}).items()}
        content = {"name": source.removeprefix("recipe "), "source": "here", "settings": values, "env": env}
        written = msgspec.yaml.encode(content) + f"match: {{{match}}}\n".encode()
        (qwen / "recipes").mkdir(exist_ok=True)
        (qwen / "recipes" / f"{content['name']}.yaml").write_bytes(written)
    (qwen / "config.yaml").write_bytes(msgspec.yaml.encode(stack["config file"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "FOLDER", qwen / "recipes")
        recipe.every_in.cache_clear()
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


def test_relative_paths_start_at_their_file(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair / "paths.yaml").write_text("target: target\ndrafter: drafter\n")
    monkeypatch.chdir(tmp_path)
    from_file = Setting(str(pair / "target"), "config file")
    assert resolve(None, {}, config=pair / "paths.yaml").settings["target"] == from_file
    monkeypatch.chdir(pair)
    assert resolve("target", {}).settings["target"] == Setting(str(pair / "target"), "command line")


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
