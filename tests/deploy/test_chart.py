"""The chart by a real helm and the schemas of Kubernetes 1.28 to 1.37, which chart.sh gets.

LeaderWorkerSet and ServiceMonitor are no part of Kubernetes: see tests/deploy/custom_resources.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dovetail.plan.emit import emitted
from dovetail.plan.models_file import read_models
from tests.deploy import custom_resources
from tests.plan.emit_plans import DRAFTING, RECIPES, settings_of
from tests.plan.test_emit_helm import CHART, IMAGE

ROOT = Path(__file__).parents[2]
TOOLS = os.environ.get("DOVETAIL_CHART_TOOLS", "")
VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
needs_tools = pytest.mark.skipif(not TOOLS, reason="no DOVETAIL_CHART_TOOLS: see chart.sh, CONTRIBUTING.md")
IMAGES = {"vllm": {"image": IMAGE}, "gateway": {"image": IMAGE}}
SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "two nodes": {"vllm": {"nodes": 2, "gpus": 8, "args": ["--tensor-parallel-size", "16"]}},
    "claim, key, hub": {
        "model": {"name": "/model/a", "claim": "models", "hubSecret": "hub", "revision": "5f3c"},
        "gateway": {"keySecret": "keys", "args": ["--strict", "names"], "drafts": False, "grace": 90},
    },
    "scaled, watched": {
        "gateway": {"autoscaling": {"enabled": True, "maxReplicas": 4}},
        "monitoring": {"serviceMonitor": True, "dashboard": True},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]},
    },
    "open, placed": {
        "networkPolicy": {"enabled": False},
        "vllm": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "env": {"A": "1e5", "B": "yes"},
            "gpus": 0,
        },
    },
}
SEVERAL = {
    "models": {
        "qwen": {"target": "Qwen/Qwen3-8B", "engine": ["http://a-vllm:8000", "dns://b:8000"], "aliases": ["claude-*"]},
        "bge": {"engine": "http://c:8000", "passes": ["embeddings"]},
    },
    "gateway": {"keySecret": "keys", "autoscaling": {"enabled": True}},
    "vllm": {"image": ""},
}
SETS["several models"] = SEVERAL
NEW: dict[str, dict[str, Any]] = {
    "images": {"model": {"name": "/model", "image": IMAGE}, "drafter": {"image": IMAGE}},
}


def helm(*words: str, values: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    whole = {key: IMAGES.get(key, {}) | values.get(key, {}) for key in IMAGES.keys() | values.keys()}
    (tmp_path / "values.json").write_text(json.dumps(whole))  # PyYAML writes "1e5" as a number of YAML 1.2
    command = [f"{TOOLS}/bin/helm", *words, "--values", str(tmp_path / "values.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(values: dict[str, Any], version: str, tmp_path: Path) -> list[dict[str, Any]]:
    done = helm("template", "m", str(CHART), "--kube-version", version, values=values, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def validate(documents: list[dict[str, Any]], version: str, tmp_path: Path) -> None:
    """Strictly, against the schemas of one version of Kubernetes."""
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([each for whole in documents for each in known(whole)]))
    command = [f"{TOOLS}/bin/kubernetes-validate", "-k", version, "--strict", str(tmp_path / "all.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def known(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The document, or of a custom resource the pods inside, after its own fields were checked."""
    if document["kind"] == "ServiceMonitor":
        custom_resources.check_service_monitor(document, TOOLS)
        return []
    inside = custom_resources.pods(document)
    return [document] if inside is None else [_deployment(template) for template in inside]


def _deployment(template: dict[str, Any]) -> dict[str, Any]:
    labels = template["metadata"]["labels"]
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pod"}, "spec": spec}


@needs_tools
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*SETS, *NEW])
def test_every_set_of_values_is_valid_in_every_version(name: str, version: str, tmp_path: Path) -> None:
    if name in NEW and int(version.partition(".")[2]) < 33:
        done = helm("template", "m", str(CHART), "--kube-version", version, values=NEW[name], tmp_path=tmp_path)
        assert done.returncode and "need Kubernetes 1.33 (image volumes), and this is" in done.stderr
        return
    validate(rendered((SETS | NEW)[name], version, tmp_path), version, tmp_path)


#: Of the recipes' plans one for each set of settings, and plans with and without drafts, folders, and several nodes of
#: each kind.
PLANS = dict({frozenset(plan): (name, plan) for name, plan in RECIPES.items() if name != "demo"}.values()) | {
    "drafting": DRAFTING,
    "plain": settings_of(),
    "folders": DRAFTING | settings_of(target="/here/a", drafter="/here/b"),
    "tensor over nodes": settings_of(tensor_parallel_size=16),
    "pipeline over nodes": DRAFTING | settings_of(tensor_parallel_size=8, pipeline_parallel_size=2),
    "data over nodes": settings_of(data_parallel_size=16, env={"A": "1e5", "B": "yes"}),
}


@needs_tools
@pytest.mark.parametrize("name", PLANS)
def test_every_emitted_set_of_values_is_valid(name: str, tmp_path: Path) -> None:
    values = yaml.safe_load(emitted(PLANS[name], "helm"))
    if values["model"]["name"] == "/model":
        values["model"]["claim"] = "models"
    documents = rendered(values, VERSIONS[-1], tmp_path)
    validate(documents, VERSIONS[-1], tmp_path)
    served = next(each for each in documents if each["metadata"]["name"] == "m-vllm" and each["kind"] in _SERVED)
    command = known(served)[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[3 : 3 + len(values["vllm"]["args"])] == values["vllm"]["args"]


_SERVED = ("Deployment", "LeaderWorkerSet")


@pytest.mark.parametrize("broken", [{"size": 0}, {"restartPolicy": "Always"}, {"sizes": 2}])
def test_a_broken_group_is_not_valid(broken: dict[str, Any]) -> None:
    group: dict[str, Any] = {"size": 2, "leaderTemplate": {}, "workerTemplate": {}}
    document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "m"},
        "spec": {"leaderWorkerTemplate": group},
    }
    assert custom_resources.pods(document)
    group |= broken
    with pytest.raises(jsonschema.ValidationError):
        custom_resources.pods(document)


@needs_tools
@pytest.mark.parametrize("name", SETS)
def test_lint(name: str, tmp_path: Path) -> None:
    done = helm("lint", "--strict", str(CHART), values=SETS[name], tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout


@needs_tools
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vllm": {"image": "vllm/vllm-openai:latest"}}, "/vllm/image"),
        ({"vllm": {"image": ""}}, "/vllm/image"),
        ({"models": {"a": {"target": "x/y"}}}, "missing property 'engine'"),
        ({"vllm": {"nodes": 0}}, "/vllm/nodes"),
        ({"vllm": {"args": [1]}}, "/vllm/args/0"),
        ({"vllm": {"gpu": 8}}, "additional properties 'gpu' not allowed"),
        ({"model": {"name": "a", "claim": "c", "image": IMAGE}}, "model.claim and model.image are both set"),
        ({"model": {"name": "Qwen/Qwen3-8B", "claim": "c"}}, "model.name is Qwen/Qwen3-8B: with model.claim"),
        ({"model": {"name": "/model"}}, "model.name is the path /model: set model.claim or model.image"),
        ({"gateway": {"replicas": 9, "autoscaling": {"enabled": True}}}, "is above gateway.autoscaling.maxReplicas"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    done = helm("template", "m", str(CHART), "--kube-version", "1.37", values=values, tmp_path=tmp_path)
    assert done.returncode and message in done.stderr


@needs_tools
@pytest.mark.parametrize("drafts", [True, False])
def test_vllm_reports_the_drafts_that_the_gateway_waits_for(drafts: bool, tmp_path: Path) -> None:
    """A gateway that waits for accepted drafts would never be ready without; vLLM refuses it where nothing drafts."""
    documents = rendered({"gateway": {"drafts": drafts}}, "1.37", tmp_path)
    engine = next(each for each in documents if each["kind"] == "Deployment" and each["metadata"]["name"] == "m-vllm")
    command = engine["spec"]["template"]["spec"]["containers"][0]["command"]
    assert ("--per-request-spec-decode-metrics=summary" in command) == drafts


@needs_tools
def test_a_pod_drains_before_it_ends(tmp_path: Path) -> None:
    documents = rendered({"gateway": {"grace": 90}}, "1.37", tmp_path)
    gateway = next(each for each in documents if each["kind"] == "Deployment" and each["metadata"]["name"] == "m")
    pod = gateway["spec"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    assert words[words.index("--grace") + 1] == "90" and pod["terminationGracePeriodSeconds"] == 105
    assert pod["containers"][0]["startupProbe"]["exec"]["command"] == ["python3", "-m", "dovetail.client.probe"]


@needs_tools
def test_the_file_of_several_models_is_one_that_serve_reads(tmp_path: Path) -> None:
    documents = rendered(SEVERAL, "1.37", tmp_path)
    assert not [each for each in documents if each["metadata"]["name"] == "m-vllm"]
    file = tmp_path / "models.yaml"
    file.write_text(next(each["data"]["models.yaml"] for each in documents if each["kind"] == "ConfigMap"))
    assert [(entry.name, entry.settings["engine"]) for entry in read_models(file)] == [
        ("bge", "http://c:8000"),
        ("qwen", "http://a-vllm:8000,dns://b:8000"),
    ]
    gateway = next(each for each in documents if each["kind"] == "Deployment")
    assert gateway["spec"]["template"]["spec"]["containers"][0]["args"][:2] == [
        "--models",
        "/etc/dovetail-models/models.yaml",
    ]


@needs_tools
def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run(
        [f"{TOOLS}/bin/hadolint", str(ROOT / "deploy/image/Dockerfile")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
