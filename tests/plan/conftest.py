"""A machine without GPUs, a hub with the models that a test puts there, and folders of small checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.engine.compute import BY_PROCESSOR
from dovetail.plan import embedded, hardware
from tests.checkpoints.configs import QWEN3_8B, QWEN3_8B_EAGLE3, write
from tests.checkpoints.conftest import Put, put
from tests.plan import pair as checkpoints

__all__ = ["Put", "put"]
WriteTarget = Callable[..., Path]


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans see no GPU and 24 GB of memory, whatever this machine has."""
    monkeypatch.setattr(hardware, "detect", lambda: None)
    monkeypatch.setattr(embedded, "machine_memory", lambda: 24 * 10**9)
    monkeypatch.setattr(embedded, "kernels_here", lambda: BY_PROCESSOR["avx_ne_convert"])


@pytest.fixture(scope="module")
def write_target(small_tokenizer_file: Path) -> WriteTarget:
    """Writes a target with a Kimi tokenizer."""
    return lambda folder, **changes: checkpoints.write_target(folder, small_tokenizer_file, **changes)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, write_target: WriteTarget) -> Path:
    """A folder with `target` and `drafter`, which the embedded engine can run."""
    folder = tmp_path_factory.mktemp("pair")
    write_target(folder / "target")
    checkpoints.write_drafter(folder / "drafter")
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with targets and drafters for vLLM, tokenizers and keys, two of each, and no recipes."""
    folder = tmp_path_factory.mktemp("qwen")
    for which in ("a", "b"):
        write(folder / f"target-{which}", QWEN3_8B)
        write(folder / f"drafter-{which}", QWEN3_8B_EAGLE3)
        (folder / f"tokenizer-{which}").mkdir()
        (folder / f"tokenizer-{which}" / "tokenizer.json").touch()
        (folder / f"key-{which}").touch()
    return folder
