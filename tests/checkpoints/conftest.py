"""A hub that has the models that a test puts there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.checkpoints import hub
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import Config, write

Put = Callable[[str, Config], Path]


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
