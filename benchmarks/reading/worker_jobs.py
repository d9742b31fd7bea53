"""What a worker is sent with a job, whatever its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.reading.deltas import Cutter
from benchmarks.reading.families import Family
from benchmarks.reading.workers import Reader


def common(
    family: Family, cutter: Cutter, tools: Sequence[Mapping[str, Any]], *, limit: float, fastest: bool = False
) -> dict[str, Any]:
    """What a worker has to know of the family, whatever the task."""
    prompt = [token for _, ids in cutter.tokens(family.opening) for token in ids]
    return {
        "family": family.name,
        "parsers": {"vllm": asdict(family.vllm), "sglang": asdict(family.sglang)},
        "tools": list(tools),
        "opening": family.opening,
        "thinks": family.thinks,
        "end": family.end,
        "prompt": prompt or [cutter.control[family.end]],
        "encoded": {block: [t for _, ids in cutter.tokens(block) for t in ids] for block in family.blocks},
        "control": cutter.control,
        "table": {token: spelled.decode("latin-1") for token, spelled in cutter.table.items()},
        "limit": limit,
        "fastest": fastest,
    }


def for_reader(reader: Reader, job: dict[str, Any]) -> dict[str, Any]:
    """The job as this reader gets it: with ids, or without."""
    if reader.ids or job["parsers"].get(reader.engine, {}).get("ids"):
        return job | {"ids": True}
    stripped = job | {"ids": False, "table": {}}
    if "deltas" in job:
        stripped["deltas"] = [(text, None) for text, _ in job["deltas"]]
    else:
        stripped["outputs"] = [([(text, None) for text, _ in deltas], wanted) for deltas, wanted in job["outputs"]]
    return stripped
