"""Writes a plan as a Kubernetes manifest: vLLM in a Deployment, or on several nodes in a LeaderWorkerSet."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from dovetail.plan.emit import vllm
from dovetail.plan.emit.command import Command, comment, printable
from dovetail.plan.layers import Setting, value
from dovetail.plan.parallel import GPUS

#: The number of GPUs that one node is assumed to have.
GPUS_PER_NODE = 8
_HUB_CACHE = "/root/.cache/huggingface"
_CHECKPOINTS = ("target", "drafter", "tokenizer")


def manifest(plan: Mapping[str, Setting[Any]], version: str | None = None, *, group: bool = False) -> str:
    """YAML for `kubectl apply -f -`: a Service, and the Deployment or LeaderWorkerSet behind it.

    `group`: a LeaderWorkerSet on one node too.
    """
    inside = {name: setting for name, setting in plan.items() if name != "api_key_file"}
    inside["host"] = Setting("0.0.0.0", "cluster")
    command = vllm.command(inside, version)
    name, port = name_of(plan), value(plan, "port") or 8000
    nodes, gpus = nodes_of(plan)
    checkpoints = [path for path in (value(plan, which) for which in _CHECKPOINTS) if path is not None]
    folders = sorted({path for path in checkpoints if path.startswith("/")})
    hub = len(folders) < len(set(checkpoints))
    group = group or nodes > 1
    pod = _Pod(command, image_of(version), name, port, gpus, folders, hub)
    objects = [_service(name, port), _group(pod, nodes) if group else _on_one_node(pod)]
    if hub:
        objects.insert(0, _claim(name, nodes))
    documents = "---\n".join(yaml_text(document) for document in objects)
    notes = ["Needs LeaderWorkerSet: https://lws.sigs.k8s.io/docs/installation/"] if group else []
    host = value(plan, "host")
    if host not in (None, "0.0.0.0", "::"):
        notes.insert(0, f"not carried over: host {host}: the Service must reach the pod")
    return comments(plan, name, (*notes, *command.notes)) + documents


def image_of(version: str | None) -> str:
    """vLLM's own image of the version that the command is for."""
    return f"vllm/vllm-openai:v{vllm.flavour_of(version)}.0"


def nodes_of(plan: Mapping[str, Setting[Any]]) -> tuple[int, int]:
    """The nodes that the plan needs and the GPUs of each: vLLM needs the same number on every node."""
    gpus = math.prod(value(plan, degree) or 1 for degree in GPUS)
    each = next(each for each in range(GPUS_PER_NODE, 0, -1) if gpus % each == 0)
    return gpus // each, each


class Word(str):
    """Text that YAML readers must not take for a number (`1e5`); written in double quotes."""


def word(text: str) -> Word:
    """`text`, escaped so that the cluster does not expand `$(NAME)` in it."""
    return Word(text.replace("$", "$$"))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(Word, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def yaml_text(document: dict[str, Any]) -> str:
    """YAML in the order of the keys, without aliases and line breaks inside texts."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20)
    return text


class _Pod(msgspec.Struct, frozen=True):
    command: Command
    image: str
    name: str
    port: int
    gpus: int
    folders: list[str]
    hub: bool

    def template(self, *more: str, answers: bool = True) -> dict[str, Any]:
        """A pod that runs the command with `more` words. One that `answers` HTTP has probes for its health.

        The start may take an hour, because weights are downloaded and loaded.
        """
        answering = {"ports": [{"name": "http", "containerPort": self.port}], **probes("http")}
        volumes = self._volumes()
        container = {
            "name": "vllm",
            "image": self.image,
            "command": [*map(word, self.command.argv), *map(Word, more)],
            "env": environment(self.name, self.command),
            "resources": {"limits": {"nvidia.com/gpu": self.gpus}},
            **(answering if answers else {}),
            "volumeMounts": [{"name": name, "mountPath": path} for name, path, _ in volumes],
        }
        return {
            "metadata": {"labels": {"app": self.name, **({"role": "leader"} if answers else {})}},
            "spec": {
                "containers": [container],
                "volumes": [{"name": name, **source} for name, _, source in volumes],
            },
        }

    def _volumes(self) -> list[tuple[str, str, dict[str, Any]]]:
        """For each volume its name, its mount path and its source."""
        volumes: list[tuple[str, str, dict[str, Any]]] = [
            ("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}})
        ]
        if self.hub:
            volumes.append(("hub", _HUB_CACHE, {"persistentVolumeClaim": {"claimName": f"{self.name}-hub"}}))
        for number, path in enumerate(self.folders):
            volumes.append((f"folder-{number}", path, {"hostPath": {"path": path, "type": "Directory"}}))
        return volumes


def probes(port: int | str, **more: str) -> dict[str, Any]:
    """The probes of a pod that answers HTTP. `more`: members of each httpGet."""
    probe = {"httpGet": {"path": "/health", "port": port, **more}, "timeoutSeconds": 5}
    return {
        "startupProbe": probe | {"periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": probe | {"periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": probe | {"periodSeconds": 10, "failureThreshold": 6},
    }


def environment(name: str, command: Command) -> list[dict[str, Any]]:
    """A container's variables: keys from the secret `name`, then the command's own."""
    return [
        {"name": "VLLM_API_KEY", "valueFrom": _secret(name, "api-key")},
        {"name": "HF_TOKEN", "valueFrom": _secret(name, "hf-token", optional=True)},
        *({"name": variable, "value": word(text)} for variable, text in command.variables.items()),
    ]


def over_nodes(nodes: int) -> tuple[str, ...]:
    """The words by which the pods of a LeaderWorkerSet find each other. vLLM needs no Ray for that."""
    return ("--nnodes", str(nodes), "--master-addr", "$(LWS_LEADER_ADDRESS)", "--node-rank", "$(LWS_WORKER_INDEX)")


def name_of(plan: Mapping[str, Setting[Any]]) -> str:
    """The served model's name as Kubernetes allows names: lower case, digits and hyphens, at most 46 characters."""
    called = value(plan, "served_model_name") or PurePosixPath(plan["target"].value).name
    plain = re.sub(r"[^a-z0-9]+", "-", called.lower()).strip("-")[:40].rstrip("-")
    return plain if plain[:1].isalpha() else f"model-{plain}".rstrip("-")


def _secret(name: str, key: str, **more: bool) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key, **more}}


def _claim(name: str, nodes: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{name}-hub"},
        "spec": {
            "accessModes": ["ReadWriteMany" if nodes > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": "1500Gi"}},
        },
    }


def _service(name: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app": name, "role": "leader"},
            "ports": [{"name": "http", "port": port, "targetPort": "http"}],
        },
    }


def _on_one_node(pod: _Pod) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pod.name},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a second pod would find no free GPUs
            "selector": {"matchLabels": {"app": pod.name}},
            "template": pod.template(),
        },
    }


def _group(pod: _Pod, nodes: int) -> dict[str, Any]:
    """A leader pod and its workers, which restart together (https://lws.sigs.k8s.io); on one node the leader alone."""
    shared = over_nodes(nodes) if nodes > 1 else ()
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": pod.name},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod.template(*shared),
                "workerTemplate": pod.template(*shared, "--headless", answers=False),
            },
        },
    }


def comments(plan: Mapping[str, Setting[Any]], name: str, notes: Sequence[str]) -> str:
    """Lines of comment: how to make the secret `name`, then the notes."""
    keys = value(plan, "api_key_file")
    where = '--from-literal=api-key="$(openssl rand -hex 32)"'
    if keys is not None:
        where = printable(" ".join(f"--from-file=api-key={shlex.quote(keys)}".splitlines()))
    first = "First run this command (with --from-literal=hf-token=… too, if the hub wants a token for the model):"
    then = "Clients must send that key, because the pod listens on all its addresses."
    lines = [*comment(first), f"# kubectl create secret generic {name} {where}"]
    lines += [line for note in (then, *notes) for line in comment(note)]
    return "".join(line + "\n" for line in lines)
