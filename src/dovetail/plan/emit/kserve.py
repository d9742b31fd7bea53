"""Writes a plan as KServe's LLMInferenceService: vLLM on one node, or on several by pipeline or data parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import PlanError
from dovetail.plan.emit import kubernetes, vllm
from dovetail.plan.layers import Setting, value

#: Where KServe puts the model, and its port.
_MODEL, _PORT = "/mnt/models", 8000
#: Where a drafter from a claim is mounted.
_DRAFTER = "/mnt/drafter"
#: The names by which KServe's own template and this manifest are merged.
_CONTAINER, _SHARED_MEMORY = "main", "dshm"


def service(plan: Mapping[str, Setting[Any]], version: str | None = None) -> str:
    """YAML for `kubectl apply -f -`: one LLMInferenceService, whose model KServe downloads or mounts.

    Raises `PlanError` for tensor parallelism over several nodes, which KServe cannot set up.
    """
    name, target, drafter = kubernetes.name_of(plan), value(plan, "target"), value(plan, "drafter")
    nodes, gpus = kubernetes.nodes_of(plan)
    parallelism = _parallelism(plan, nodes)
    called = value(plan, "served_model_name") or target
    notes = [f"KServe must reach the pods by HTTP, without TLS, on port {_PORT}"]
    if nodes > 1:
        notes.append("Needs LeaderWorkerSet: https://lws.sigs.k8s.io/docs/installation/")
    uri = f"hf://{target}"
    if target.startswith("/"):
        notes.append(f"{target} is a folder of this machine: it has to be the content of the claim {name}-model")
        uri = f"pvc://{name}-model"
    elif (revision := value(plan, "revision")) is not None:
        uri += f":{revision}"
    for key, taken in (("host", ("0.0.0.0", "::")), ("port", (_PORT,))):
        if value(plan, key) not in (None, *taken):
            notes.append(f"not carried over: {key} {value(plan, key)}: KServe's router must reach the pod")
    inside = {key: setting for key, setting in plan.items() if key not in ("api_key_file", "revision")}
    fixed = {"target": _MODEL, "served_model_name": called, "host": "0.0.0.0", "port": _PORT}
    inside |= {key: Setting(fix, "KServe") for key, fix in fixed.items()}
    volumes: list[dict[str, Any]] = [
        {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
    ]
    mounts: list[dict[str, Any]] = [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]
    if drafter is not None and drafter.startswith("/"):
        notes.append(f"{drafter} is a folder of this machine: it has to be the content of the claim {name}-drafter")
        inside["drafter"] = Setting(_DRAFTER, plan["drafter"].source)
        volumes.append({"name": "drafter", "persistentVolumeClaim": {"claimName": f"{name}-drafter", "readOnly": True}})
        mounts.append({"name": "drafter", "mountPath": _DRAFTER, "readOnly": True})
    command = vllm.command(inside, version)

    def pod(*more: str, answers: bool = True) -> dict[str, Any]:
        """KServe merges this over its template; words that are set here replace its own."""
        container = {
            "name": _CONTAINER,
            "image": kubernetes.image_of(version),
            "command": [*map(kubernetes.word, command.argv[:2])],
            "args": [*map(kubernetes.word, command.argv[2:]), *map(kubernetes.Word, more)],
            "env": kubernetes.environment(name, command),
            "resources": {"limits": {"nvidia.com/gpu": gpus}},
            **(kubernetes.probes(_PORT, scheme="HTTP") if answers else {}),
            "volumeMounts": mounts,
        }
        return {"containers": [container], "volumes": volumes}

    shared = kubernetes.over_nodes(nodes) if nodes > 1 else ()
    workers = {"parallelism": parallelism, "worker": pod(*shared, "--headless", answers=False)} if nodes > 1 else {}
    document = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": kubernetes.Word(uri), "name": kubernetes.Word(called)},
            "replicas": 1,
            "router": {"route": {}, "gateway": {}},
            "template": pod(*shared),
            **workers,
        },
    }
    return kubernetes.comments(plan, name, (*notes, *command.notes)) + kubernetes.yaml_text(document)


def _parallelism(plan: Mapping[str, Setting[Any]], nodes: int) -> dict[str, int]:
    """What KServe derives the size of a group of nodes from; empty on one node.

    Source: KServe, pkg/apis/serving/v1alpha1, `ParallelismSpec` and its validation.
    """
    degrees = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    tensor, pipeline, data = (value(plan, degree) or 1 for degree in degrees)
    if nodes == 1:
        return {}
    if pipeline == nodes and data == 1:
        return {"tensor": tensor, "pipeline": pipeline}
    if pipeline == 1 and data % nodes == 0:
        return {"tensor": tensor, "data": data, "dataLocal": data // nodes}
    raise PlanError(
        f"--emit kserve: KServe sets up {nodes} nodes by --pipeline-parallel-size {nodes}, or a --data-parallel-size "
        f"that {nodes} divides, and this plan has tensor {tensor}, pipeline {pipeline}, data {data}: set one of them, "
        "or use --emit lws"
    )
