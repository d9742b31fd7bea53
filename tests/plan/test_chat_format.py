"""The chat format of a target is detected, or unknown with a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

from dovetail.plan.engines import chat_format
from tests.checkpoints.configs import KIMI_K25, write


def test_a_chat_format_is_detected_or_unknown(tmp_path: Path, small_tokenizer_file: Path) -> None:
    folder = write(tmp_path, KIMI_K25)
    unknown = chat_format(folder)
    assert unknown.name is None
    assert unknown.reason
    shutil.copy(small_tokenizer_file, tmp_path / "tokenizer.json")
    assert chat_format(folder).name == "kimi_k25"
