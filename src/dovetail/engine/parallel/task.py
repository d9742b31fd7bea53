"""What rank 0 asks another rank to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Task:
    """Rank `rank` of those that meet in the file `meeting` loads its part of the target in the folder `target`, with
    `rows` of cache, `context` positions and the residual streams `aux_layers`, and computes with `threads` threads."""

    rank: int
    meeting: Path
    target: Path
    settings: EngineSettings
    rows: int
    context: int
    aux_layers: tuple[int, ...]
    threads: int
