"""The chart by a real helm and the schemas of Kubernetes 1.28 to 1.37: `make chart-test` names the tools' folder.

LeaderWorkerSet and ServiceMonitor are no part of Kubernetes: the pods in the first are checked as those of a
Deployment, and their own fields against what is written here, not against their CRDs.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.plan.emit import emitted
from tests.plan.emit_plans import DRAFTING, RECIPES, settings_of
from tests.plan.test_emit_helm import CHART, IMAGE

ROOT = Path(__file__).parents[2]
TOOLS = os.environ.get("DOVETAIL_CHART_TOOLS", "")
VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
needs_tools = pytest.mark.skipif(not TOOLS, reason="make chart-test names a folder in DOVETAIL_CHART_TOOLS")
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
    """The document, or of a custom resource the parts that Kubernetes knows; their own fields are checked here."""
    if document["kind"] == "LeaderWorkerSet":
        spec = document["spec"]
        assert document["apiVersion"] == "leaderworkerset.x-k8s.io/v1" and set(spec) == {
            "replicas",
            "leaderWorkerTemplate",
        }
        group = spec["leaderWorkerTemplate"]
        assert set(group) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
        assert isinstance(group["size"], int) and group["restartPolicy"] == "RecreateGroupOnPodRestart"
        return [_deployment(group["leaderTemplate"]), _deployment(group["workerTemplate"])]
    if document["kind"] == "ServiceMonitor":
        assert set(document["spec"]) == {"selector", "endpoints"}
        return []
    return [document]


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


@needs_tools
@pytest.mark.parametrize("name", [*sorted(RECIPES.keys() - {"demo"}), "drafting", "plain"])
def test_every_emitted_plan_is_valid(name: str, tmp_path: Path) -> None:
    plan = {"drafting": DRAFTING, "plain": settings_of()}.get(name) or RECIPES[name]
    for version in (VERSIONS[0], VERSIONS[-1]):
        validate(list(yaml.safe_load_all(emitted(plan, "k8s"))), version, tmp_path)
    values = yaml.safe_load(emitted(plan, "helm"))
    documents = rendered(values, VERSIONS[-1], tmp_path)
    validate(documents, VERSIONS[-1], tmp_path)
    pods = [each for document in documents for each in known(document) if each["metadata"]["name"] in ("pod", "m-vllm")]
    command = next(each for each in pods if each["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    assert command[3 : 3 + len(values["vllm"]["args"])] == values["vllm"]["args"]


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
def test_a_pod_drains_before_it_ends(tmp_path: Path) -> None:
    documents = rendered({"gateway": {"grace": 90}}, "1.37", tmp_path)
    gateway = next(each for each in documents if each["kind"] == "Deployment" and each["metadata"]["name"] == "m")
    pod = gateway["spec"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    assert words[words.index("--grace") + 1] == "90" and pod["terminationGracePeriodSeconds"] == 105
    assert pod["containers"][0]["startupProbe"]["exec"]["command"] == ["python3", "-m", "dovetail.image.probe"]


@needs_tools
def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run(
        [f"{TOOLS}/bin/hadolint", str(ROOT / "deploy/image/Dockerfile")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dashboard_of_the_chart_is_the_one_there_is() -> None:
    """Helm reads only files of the chart, and a link would not survive every archive: so the chart has a copy."""
    copy, original = CHART / "dashboards" / "dashboard.json", ROOT / "deploy" / "observability" / "dashboard.json"
    assert copy.read_bytes() == original.read_bytes(), f"cp {original} {copy}"
