"""The picture of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.bench.png import png
from dovetail.cli import main
from tests.bench.scripted import Scripted
from tests.bench.test_html import result
from tests.bench.test_known_times import plan


@pytest.mark.slow
@pytest.mark.parametrize("script", [{"drafts": True, "refuses": ()}, {}, {"status": 500}], ids=str)
def test_a_run_has_a_picture(script: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    png(result(plan((100, 1024), (1, 4), kinds=("prose", "calls")), Scripted(**script)), file)
    picture = file.read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and b"dovetail bench" in picture and b"seed 1; 31 tokens" in picture


def test_without_matplotlib_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("dovetail.cli.bench.find_spec", lambda name: None)
    assert main(["bench", "http://127.0.0.1:9", "--png", str(tmp_path / "picture.png")]) == 2
    assert "pip install 'dovetail[bench]'" in capsys.readouterr().err
