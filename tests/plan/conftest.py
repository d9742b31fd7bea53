"""A machine without GPUs, and a hub that has the models that a test puts there."""

from __future__ import annotations

import pytest

from dovetail.plan import embedded, hardware
from tests.checkpoints.conftest import Put, put

__all__ = ["Put", "put"]


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, a plan finds none, and 24 GB of memory."""
    monkeypatch.setattr(hardware, "detect", lambda: None)
    monkeypatch.setattr(embedded, "machine_memory", lambda: 24 * 10**9)
