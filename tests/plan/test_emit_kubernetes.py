"""Plans as Kubernetes manifests: every pod gets its GPUs, the Service finds the leader, and words arrive unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given

from dovetail.plan.emit import emitted, vllm
from dovetail.plan.layers import Setting
from tests.plan.emit_plans import NASTY, Settings, settings_of


def objects(plan: Mapping[str, Setting[Any]]) -> dict[str, dict[str, Any]]:
    """Kind -> object."""
    text = emitted(plan, "k8s")
    comments, _, rest = text.partition("apiVersion")
    assert all(line.startswith("#") for line in comments.splitlines())
    return {manifest["kind"]: manifest for manifest in map(msgspec.yaml.decode, ("apiVersion" + rest).split("---\n"))}


def pods(manifest: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    if "Deployment" in manifest:
        return [manifest["Deployment"]["spec"]["template"]]
    group = manifest["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


@pytest.mark.parametrize(
    ("degrees", "nodes", "gpus"),
    [
        ({}, 1, 1),
        ({"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 1, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, 1, 8),
        ({"tensor_parallel_size": 16}, 2, 8),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 3}, 3, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 3}, 2, 6),
        ({"tensor_parallel_size": 3, "data_parallel_size": 3}, 3, 3),
        ({"data_parallel_size": 11}, 11, 1),
    ],
)
def test_gpus_are_spread_evenly_over_no_more_nodes_than_needed(degrees: dict[str, int], nodes: int, gpus: int) -> None:
    manifest = objects(settings_of(**degrees))
    assert ("Deployment" if nodes == 1 else "LeaderWorkerSet") in manifest
    for pod in pods(manifest):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    if nodes > 1:
        group = manifest["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        assert group["size"] == nodes
        leader, worker = (pod["spec"]["containers"][0] for pod in pods(manifest))
        shared = ["--nnodes", str(nodes), "--master-addr", "$(LWS_LEADER_ADDRESS)"]
        assert leader["command"][-6:] == [*shared, "--node-rank", "$(LWS_WORKER_INDEX)"]
        assert worker["command"] == [*leader["command"], "--headless"]
        assert "readinessProbe" in leader and "readinessProbe" not in worker


def test_lws_is_a_group_on_one_node_too() -> None:
    on_one = [yaml for yaml in emitted(settings_of(), "lws").split("---\n") if "LeaderWorkerSet\n" in yaml]
    group = msgspec.yaml.decode(on_one[0])["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 1
    assert "--nnodes" not in group["leaderTemplate"]["spec"]["containers"][0]["command"]
    several = settings_of(tensor_parallel_size=16)
    assert emitted(several, "lws") == emitted(several, "k8s")


@pytest.mark.parametrize("plan", [settings_of(), settings_of(tensor_parallel_size=16)], ids=["one node", "two nodes"])
def test_the_service_finds_the_pod_that_answers(plan: Settings) -> None:
    manifest = objects(plan | settings_of(port=9000))
    leader = pods(manifest)[0]
    assert manifest["Service"]["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    for worker in pods(manifest)[1:]:
        assert not manifest["Service"]["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    container = leader["spec"]["containers"][0]
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert manifest["Service"]["spec"]["ports"][0] == {"name": "http", "port": 9000, "targetPort": "http"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["command"][container["command"].index("--host") + 1] == "0.0.0.0"


def test_a_pod_asks_for_a_key_from_a_secret() -> None:
    text = emitted(settings_of(api_key_file="/keys/my key", host="127.0.0.1"), "k8s")
    assert "# kubectl create secret generic qwen3-8b --from-file=api-key='/keys/my key'\n" in text
    assert "# not carried over: host 127.0.0.1: " in text
    assert "not carried over: api_key_file" not in text
    variables = pods(objects(settings_of()))[0]["spec"]["containers"][0]["env"]
    reference = {"secretKeyRef": {"name": "qwen3-8b", "key": "api-key"}}
    assert {"name": "VLLM_API_KEY", "valueFrom": reference} in variables
    assert "optional" not in reference["secretKeyRef"]


def test_folders_are_where_the_command_says_and_the_hub_has_a_volume() -> None:
    mixed = settings_of(target="/models/a", drafter="org/b", method="eagle3", draft_tokens=3, tensor_parallel_size=16)
    manifest = objects(mixed)
    assert manifest["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(manifest):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert volumes[mounts["/models/a"]]["hostPath"]["path"] == "/models/a"
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        claim = volumes[mounts["/root/.cache/huggingface"]]["persistentVolumeClaim"]["claimName"]
        assert claim == manifest["PersistentVolumeClaim"]["metadata"]["name"]
    assert "PersistentVolumeClaim" not in objects(settings_of(target="/models/a"))


def test_the_image_is_of_the_version() -> None:
    assert "image: vllm/vllm-openai:v0.32.0" in emitted(settings_of(), "k8s", "0.32.1")
    assert "image: vllm/vllm-openai:v0.33.0" in emitted(settings_of(), "k8s")


@given(name=NASTY, env=NASTY)
def test_names_are_ones_that_kubernetes_takes_and_words_arrive_as_they_are(name: str, env: str) -> None:
    plan = settings_of(served_model_name=name, env={"A": env})
    manifest = objects(plan)
    for kind in manifest.values():
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", kind["metadata"]["name"])
    container = pods(manifest)[0]["spec"]["containers"][0]
    assert [expanded(word) for word in container["command"]] == vllm.command(plan | settings_of(host="0.0.0.0")).argv
    assert [expanded(each["value"]) for each in container["env"] if each["name"] == "A"] == [env]


def expanded(word: str) -> str:
    """As the kubelet does: $$ is a dollar, and $(NAME) a variable (k8s.io/kubernetes, forked/golang/expansion)."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda manifest: "$" if manifest[1] == "$" else "EXPANDED", word)


def test_text_that_other_yaml_readers_take_for_a_number_is_quoted() -> None:
    numbers = {"A": "1e3", "B": "0o17", "C": "~"}
    text = emitted(settings_of(revision="7e12345", gpu_memory_utilization=1e-05, env=numbers), "k8s")
    assert '- "7e12345"\n' in text and '- "1e-05"\n' in text
    for value in numbers.values():
        assert f'value: "{value}"\n' in text


def test_over_nodes_only_our_own_words_are_expanded() -> None:
    pod = pods(objects(settings_of(tensor_parallel_size=16, served_model_name="$(LWS_LEADER_ADDRESS)")))[0]
    command = pod["spec"]["containers"][0]["command"]
    assert "$(LWS_LEADER_ADDRESS)" in command and "$$(LWS_LEADER_ADDRESS)" in command


def test_nodes_are_as_few_as_hold_all_gpus() -> None:
    huge = settings_of(tensor_parallel_size=4093, pipeline_parallel_size=4091, data_parallel_size=4079)
    sizes = objects(huge)["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"]
    assert sizes == 4093 * 4091 * 4079  # primes: one GPU a node
    assert objects(settings_of(tensor_parallel_size=12))["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 2
