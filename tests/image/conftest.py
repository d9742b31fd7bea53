"""The folder of models of the demo pair, as `vllm-speculative` holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.image.manifest import write_models
from dovetail.plan import Plan, hardware, resolve

DEMO = Path(dovetail.__file__).parent / "data" / "demo"


def planned(target: Path = DEMO / "target", **options: Any) -> Plan:
    return resolve(str(target), {"drafter": str(DEMO / "drafter")} | options, recipe="none", engine="vllm")


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: None)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(planned(revision="1234abcd"), tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def other_target(tmp_path: Path) -> Path:
    """A target of another width than the one that the demo's drafter reads."""
    config = json.loads((DEMO / "target" / "config.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"hidden_size": 256}))
    return tmp_path / "other"
