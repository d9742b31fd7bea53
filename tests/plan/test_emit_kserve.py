"""Plans as LLMInferenceService of KServe: the model's address, groups of nodes, and words that arrive unchanged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from dovetail.errors import PlanError
from dovetail.plan.emit import emitted, vllm
from tests.plan.emit_plans import DRAFTING, NASTY, RECIPES, Settings, settings_of
from tests.plan.test_emit_kubernetes import expanded


def spec(plan: Settings) -> dict[str, Any]:
    document = msgspec.yaml.decode(emitted(plan, "kserve"))
    assert (document["apiVersion"], document["kind"]) == ("serving.kserve.io/v1alpha1", "LLMInferenceService")
    resource: dict[str, Any] = document["spec"]
    return resource


def words(pod: dict[str, Any]) -> list[str]:
    (container,) = pod["containers"]
    assert container["name"] == "main"  # as KServe's own template calls it
    return [expanded(word) for word in (*container["command"], *container["args"])]


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"demo"}))
def test_every_recipe_serves_what_kserve_downloads(name: str) -> None:
    resource = spec(RECIPES[name])
    target = RECIPES[name]["target"].value
    assert resource["model"]["uri"] == f"hf://{target}"
    assert words(resource["template"])[:3] == ["vllm", "serve", "/mnt/models"]


def test_a_revision_is_in_the_address() -> None:
    resource = spec(settings_of(revision="5f3c", port=9000, host="127.0.0.1"))
    assert resource["model"] == {"uri": "hf://Qwen/Qwen3-8B:5f3c", "name": "Qwen/Qwen3-8B"}
    assert "--revision" not in words(resource["template"])
    text = emitted(settings_of(port=9000, host="127.0.0.1"), "kserve")
    assert "# not carried over: host 127.0.0.1" in text and "# not carried over: port 9000" in text


def test_folders_of_this_machine_are_claims() -> None:
    resource = spec(DRAFTING | settings_of(target="/here/a", drafter="/here/b", revision="5f3c"))
    assert resource["model"]["uri"] == "pvc://a-model"
    pod = resource["template"]
    mounted = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    claims = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    assert claims["drafter"] == {"claimName": "a-drafter", "readOnly": True}
    assert f'"model": "{mounted["drafter"]}"' in words(pod)[-1]


@pytest.mark.parametrize(
    ("degrees", "parallelism"),
    [
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, {"tensor": 8, "pipeline": 2}),
        ({"tensor_parallel_size": 1, "data_parallel_size": 16}, {"tensor": 1, "data": 16, "dataLocal": 8}),
    ],
)
def test_nodes_are_a_group_of_the_size_that_kserve_derives(
    degrees: dict[str, int], parallelism: dict[str, int]
) -> None:
    resource = spec(settings_of(**degrees))
    assert resource["parallelism"] == parallelism
    leader = words(resource["template"])
    assert leader[leader.index("--nnodes") + 1] == "2"
    assert words(resource["worker"]) == [*leader, "--headless"]
    assert "startupProbe" not in resource["worker"]["containers"][0]


def test_one_node_has_no_worker() -> None:
    resource = spec(settings_of(tensor_parallel_size=8))
    assert resource.keys() == {"model", "replicas", "router", "template"}
    assert resource["template"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}


@pytest.mark.parametrize(
    "degrees",
    [
        {"tensor_parallel_size": 16},
        {"tensor_parallel_size": 4, "pipeline_parallel_size": 4},
        {"tensor_parallel_size": 8, "data_parallel_size": 3, "pipeline_parallel_size": 2},
    ],
)
def test_nodes_that_kserve_cannot_set_up_are_refused(degrees: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=r"KServe sets up [26] nodes by --pipeline-parallel-size [26], .* use --emit"):
        emitted(settings_of(**degrees), "kserve")


@given(name=NASTY, env=NASTY)
def test_words_arrive_unchanged(name: str, env: str) -> None:
    plan = settings_of(served_model_name=name, env={"A": env})
    resource = spec(plan)
    assert resource["model"]["name"] == name
    inside = plan | settings_of(target="/mnt/models", host="0.0.0.0", port=8000)
    assert sorted(words(resource["template"])) == sorted(vllm.command(inside).argv)
    variables = {each["name"]: each.get("value") for each in resource["template"]["containers"][0]["env"]}
    assert expanded(variables["A"]) == env
