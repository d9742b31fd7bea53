"""Writes a plan as text, in one of several forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import PlanError
from dovetail.plan.emit import helm, kserve, kubernetes, sglang, trtllm, vllm
from dovetail.plan.layers import Setting

FORMS = ("vllm", "sglang", "trtllm", "k8s", "helm", "lws", "kserve")


def emitted(plan: Mapping[str, Setting[Any]], form: str, version: str | None = None) -> str:
    """The plan's settings in one of `FORMS`: a shell script, YAML for kubectl, or values for the chart.

    `version` is vLLM's. Comments list the settings that the form cannot contain. Raises `PlanError` for another form,
    an old version, or nodes that KServe cannot set up.
    """
    match form:
        case "vllm":
            return vllm.command(plan, version).script()
        case "sglang":
            return sglang.command(plan).script()
        case "trtllm":
            return trtllm.command(plan).script()
        case "k8s":
            return kubernetes.manifest(plan, version)
        case "helm":
            return helm.values(plan, version)
        case "lws":
            return kubernetes.manifest(plan, version, group=True)
        case "kserve":
            return kserve.service(plan, version)
    raise PlanError(f"a plan cannot be written for {form!r}, only for {', '.join(FORMS)}")
