"""Plans as values for the chart: its schema takes them, and words arrive unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given

from dovetail.plan.emit import emitted
from tests.plan.emit_plans import DRAFTING, NASTY, RECIPES, Settings, settings_of

CHART = Path(__file__).parents[2] / "deploy" / "chart"
SCHEMA = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
IMAGE = "registry.example/image@sha256:" + "0" * 64


def values(plan: Settings) -> dict[str, Any]:
    """The values of a plan, with images, as the chart's schema takes them."""
    data: dict[str, Any] = yaml.safe_load(emitted(plan, "helm"))
    checked = data | {kind: data[kind] | {"image": IMAGE} for kind in ("vllm", "gateway")}
    SCHEMA.validate(checked)
    return data


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"demo"}))  # the demo.s target is a folder
def test_every_recipe_has_values(name: str) -> None:
    plan = {key: setting for key, setting in RECIPES[name].items()}
    assert values(plan)["model"] == {"name": plan["target"].value}


def test_the_gateway_expects_drafts_of_a_plan_that_drafts() -> None:
    drafting = values(DRAFTING)
    assert drafting["gateway"] == {"drafts": True}
    assert "--speculative-config" in drafting["vllm"]["args"]
    assert values(settings_of())["gateway"] == {"drafts": False}
    assert values(DRAFTING | settings_of(draft_tokens=0))["gateway"] == {"drafts": False}


@pytest.mark.parametrize(
    ("degrees", "nodes", "gpus"),
    [
        ({}, 1, 1),
        ({"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 1, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, 1, 8),
        ({"tensor_parallel_size": 16}, 2, 8),
        ({"tensor_parallel_size": 12}, 2, 6),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 3}, 3, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 3}, 2, 6),
        ({"tensor_parallel_size": 3, "data_parallel_size": 3}, 3, 3),
        ({"data_parallel_size": 11}, 11, 1),
    ],
)
def test_gpus_are_spread_evenly_over_no_more_nodes_than_needed(degrees: dict[str, int], nodes: int, gpus: int) -> None:
    data = values(settings_of(**degrees))
    assert (data["vllm"]["nodes"], data["vllm"]["gpus"]) == (nodes, gpus)


def test_text_that_other_yaml_readers_take_for_a_number_is_quoted() -> None:
    numbers = {"A": "1e3", "B": "0o17", "C": "~"}
    text = emitted(settings_of(revision="7e12345", gpu_memory_utilization=1e-05, env=numbers), "helm")
    assert '- "7e12345"\n' in text and '- "1e-05"\n' in text
    for name, value in numbers.items():
        assert f'{name}: "{value}"\n' in text


def test_what_the_chart_sets_is_not_among_the_words() -> None:
    plan = settings_of(host="127.0.0.1", port=9000, api_key_file="key", format="hermes", tensor_parallel_size=2)
    data = values(plan)
    assert data["vllm"]["args"] == ["--tensor-parallel-size", "2"]
    assert data["vllm"]["env"] == {}


def test_folders_of_this_machine_become_the_chart_s() -> None:
    text = emitted(settings_of(target="/models/a"), "helm")
    assert "# /models/a is a folder of this machine: set model.claim or model.image" in text
    assert yaml.safe_load(text)["model"] == {"name": "/model"}
    text = emitted(DRAFTING | settings_of(drafter="/here/drafter"), "helm")
    assert "# /here/drafter is a folder of this machine: it has to be the image drafter.image" in text
    assert '"model": "/drafter"' in yaml.safe_load(text)["vllm"]["args"][-1]


@given(NASTY)
def test_words_arrive_unchanged(text: str) -> None:
    """But `$`, which is doubled because a cluster expands `$(NAME)`."""
    data = values(settings_of(revision=text, env={"A": text}))
    assert (
        text.replace("$", "$$") in data["vllm"]["args"]
        or f"--revision={text}".replace("$", "$$") in data["vllm"]["args"]
    )
    assert data["vllm"]["env"]["A"] == text.replace("$", "$$")
