"""Dovetail inside vLLM: parsers for reasoning and calls, repair of histories, and a scheduler with a gate.

vLLM calls `register` by entry point in every process that it starts. So everything expensive is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.plugins.vllm.scheduler import GatedScheduler

__all__ = ["GatedScheduler"]


def __getattr__(name: str) -> Any:
    if name != "GatedScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dovetail.plugins.vllm import versions

    versions.check_installed(name)  # before imports that may fail in another version
    from dovetail.plugins.vllm.scheduler import GatedScheduler

    return GatedScheduler
