"""Writes a plan as the command of another engine, or as values for the chart."""

from collections.abc import Mapping
from typing import Any

from dovetail.errors import PlanError
from dovetail.plan.emit import helm, llama_cpp, sglang, trtllm, vllm
from dovetail.plan.emit.command import Command
from dovetail.plan.layers import Setting

__all__ = ["FORMS", "Command", "emitted"]

FORMS = ("vllm", "sglang", "trtllm", "llama.cpp", "helm")


def emitted(plan: Mapping[str, Setting[Any]], form: str, version: str | None = None) -> str:
    """The plan's settings in one of `FORMS`: a shell script, or values for the chart.

    `version` is vLLM's. Comments list the settings that the form cannot contain. Raises `PlanError` for another form
    or an old version.
    """
    match form:
        case "vllm":
            return vllm.command(plan, version).script()
        case "sglang":
            return sglang.command(plan).script()
        case "trtllm":
            return trtllm.command(plan).script()
        case "llama.cpp":
            return llama_cpp.command(plan).script()
        case "helm":
            return helm.values(plan, version)
    raise PlanError(f"a plan cannot be written for {form!r}, only for {', '.join(FORMS)}")
