"""A machine without GPUs, and a hub that has what a test puts there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.errors import CheckpointError
from dovetail.plan import embedded, hardware, hub
from tests.plan.made import Config, write

Put = Callable[[str, Config], Path]


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, a plan finds none, and 24 GB of memory."""
    monkeypatch.setattr(hardware, "detect", lambda: None)
    monkeypatch.setattr(embedded, "memory_here", lambda: 24 * 10**9)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a model on the hub, which has no others; returns the folder of its cache in which the small files lie."""
    cache = tmp_path / "cache"

    def folder(name: str) -> Path:
        return cache / f"models--{name.replace('/', '--')}" / "snapshots" / "0123abc"

    def fetch(name: str, *, revision: str | None = None) -> str:
        if not folder(name).is_dir() or revision not in (None, "main"):
            raise CheckpointError(f"there is no folder {name}, and no hub here")
        return str(folder(name))

    def put(name: str, config: Config) -> Path:
        return Path(write(folder(name), config))

    monkeypatch.setattr(hub, "fetch", fetch)
    return put
