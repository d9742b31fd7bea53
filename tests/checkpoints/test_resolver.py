"""Checkpoints by name: each is read once and keeps the name that the user gave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import KIMI_EAGLE3_MLA, QWEN3_8B, QWEN3_8B_EAGLE3, write
from tests.checkpoints.conftest import Put


def test_a_checkpoint_is_read_once(put: Put) -> None:
    folder = put("org/model", QWEN3_8B)
    checkpoints = CheckpointResolver()
    first = checkpoints.target("org/model")
    shutil.rmtree(folder)
    assert checkpoints.target("org/model") is first
    assert first.path == "org/model"


def test_an_error_is_raised_again(tmp_path: Path) -> None:
    checkpoints = CheckpointResolver()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="there is no folder"):
            checkpoints.folder(str(tmp_path / "nowhere"))


def test_the_revision_applies_to_the_target(put: Put) -> None:
    put("org/model", QWEN3_8B)
    put("org/drafter", QWEN3_8B_EAGLE3)
    checkpoints = CheckpointResolver("v1")  # which the hub does not have
    with pytest.raises(CheckpointError):
        checkpoints.target("org/model")
    assert checkpoints.drafter("org/drafter").method == "eagle3"
    assert checkpoints.is_drafter("org/drafter") and not checkpoints.is_drafter("org/model")
    assert CheckpointResolver("main").target("org/model").path == "org/model"


def test_drafters_are_recognised_by_their_config(tmp_path: Path, put: Put) -> None:
    checkpoints = CheckpointResolver()
    for i, (config, is_one) in enumerate(
        [
            (QWEN3_8B, False),
            (QWEN3_8B_EAGLE3, True),
            (KIMI_EAGLE3_MLA, True),
            ({"speculators_model_type": "nonesuch"}, True),
            ({"speculators_model_type": 3}, True),
        ]
    ):
        assert checkpoints.is_drafter(write(tmp_path / str(i), config)) == is_one
    assert not checkpoints.is_drafter(str(tmp_path / "nowhere")) and not checkpoints.is_drafter("org/nowhere")
