"""Dovetail inside vLLM: its readers as parsers, its repair of histories, its gate as a scheduler.

vLLM finds `register` by entry point in every process that it starts, so nothing heavy is imported before it is asked
for.
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

    versions.check_installed(name)  # before anything is imported that another version may have moved
    from dovetail.plugins.vllm.scheduler import GatedScheduler

    return GatedScheduler
