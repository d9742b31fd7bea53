"""Checks custom resources: what Kubernetes' own schemas do not know.

LeaderWorkerSet: its CRD is a megabyte, nearly all of it the pods inside. So its own fields are written down here,
closed and with the limits of their source, and `pods` hands out the pods inside, which Kubernetes' schemas check.
ServiceMonitor: by the validator of an npm package, which is made from its CRD.

Source: sigs.k8s.io/lws, api/leaderworkerset/v1/leaderworkerset_types.go (as of 2026).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema

#: Name -> schema of a custom resource's own fields. Pods, and what is Kubernetes' inside, are plain objects here.
Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_OBJECT: Schema = {"type": "object"}
_SHARE: Schema = {"type": ["integer", "string"]}


def _closed(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def _resource(version: str, kind: str, spec: Schema) -> Schema:
    metadata = _closed(
        ("name",), name={"type": "string", "pattern": "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"}, labels=_TEXTS
    )
    required = ("apiVersion", "kind", "metadata", "spec")
    return _closed(required, apiVersion={"const": version}, kind={"const": kind}, metadata=metadata, spec=spec)


_GROUP = _closed(
    ("workerTemplate",),
    leaderTemplate=_OBJECT,
    workerTemplate=_OBJECT,
    size=_COUNT,
    restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
    subGroupPolicy=_closed(
        subGroupPolicyType={"enum": ["LeaderWorker", "LeaderExcluded"]},
        subGroupSize=_COUNT,
    ),
    volumeClaimTemplates={"type": "array", "items": _OBJECT},
    persistentVolumeClaimRetentionPolicy=_OBJECT,
)
_ROLLOUT = _closed(
    ("type",),
    type={"enum": ["RollingUpdate"]},
    rollingUpdateConfiguration=_closed(
        partition={"type": "integer", "minimum": 0}, maxUnavailable=_SHARE, maxSurge=_SHARE
    ),
)
LEADER_WORKER_SET = _resource(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    _closed(
        ("leaderWorkerTemplate",),
        replicas={"type": "integer", "minimum": 0},
        leaderWorkerTemplate=_GROUP,
        rolloutStrategy=_ROLLOUT,
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        networkConfig=_closed(("subdomainPolicy",), subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
    ),
)

_SERVICE_MONITOR = """
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
new ServiceMonitor(JSON.parse(process.argv.at(-1))).validate();
"""


def pods(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The pods inside a LeaderWorkerSet, as pod templates; None for another kind.

    Raises `ValidationError` if the resource's own fields are not valid.
    """
    if document["kind"] == "LeaderWorkerSet":
        jsonschema.Draft202012Validator(LEADER_WORKER_SET).validate(document)
        group = document["spec"]["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return None


def check_service_monitor(document: dict[str, Any], tools: str) -> None:
    """Check a ServiceMonitor by its CRD; `tools` has the npm package."""
    # The package lets unknown fields pass.
    assert set(document["spec"]) <= {"selector", "endpoints", "namespaceSelector", "jobLabel", "targetLabels"}
    for endpoint in document["spec"]["endpoints"]:
        assert set(endpoint) <= {"port", "path", "interval", "scheme", "authorization", "tlsConfig"}
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", _SERVICE_MONITOR, "--", json.dumps(document)],
        cwd=Path(tools),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
