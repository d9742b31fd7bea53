"""`dovetail tune` without a GPU and, mostly, without Triton."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dovetail import cli
from dovetail.cli import tune
from dovetail.engine.tuning.table import Measured, Row, Table, table, updated


def test_the_table_and_its_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--no-compile", "--arch", "sm_120", "--cache", "fp8"]) == 0
    shown = capsys.readouterr().out
    assert "mma.sync" in shown and "never measured" in shown.replace("\n", " ")
    assert cli.main(["tune", "--no-compile", "--arch", "sm_120", "--json"]) == 0
    rows = msgspec.json.decode(capsys.readouterr().out, type=Table).rows
    assert rows == tuple(row for row in table().rows if row.arch == "sm_120")


def test_without_triton(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tune, "find_spec", lambda name: None)
    assert cli.main(["tune", "--arch", "sm_120"]) == 2
    assert "pip install dovetail[engine,gpu]" in capsys.readouterr().err


def test_what_was_compiled_replaces_its_cells_only(tmp_path: Path) -> None:
    before = table()
    cell = [row for row in before.rows if (row.arch, row.kind) == ("sm_120", "fp8")]
    spills = msgspec.structs.replace(cell[0], stack=400)
    compiled = Table("9.9", (cell[1], spills))
    after = msgspec.json.decode(updated(before, compiled), type=Table)
    assert after.triton == "9.9"

    def others(rows: tuple[Row, ...]) -> list[Row]:
        return [row for row in rows if (row.arch, row.kind) != ("sm_120", "fp8")]

    assert others(after.rows) == others(before.rows) and after.of("sm_120", "fp8") == (cell[1],)
    assert cli.main(["tune", "--no-compile", "--write", str(tmp_path / "table.json")]) == 0
    assert msgspec.json.decode((tmp_path / "table.json").read_bytes(), type=Table) == before


def test_measuring_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["tune", "--measure"]) == 2
    errors = capsys.readouterr().err
    assert "tune --measure needs a GPU of NVIDIA's, and torch sees none here: leave --measure out" in errors
    monkeypatch.setattr(tune, "find_spec", lambda name: None)
    assert cli.main(["tune", "--measure"]) == 2
    assert "pip install dovetail[engine,gpu]" in capsys.readouterr().err


def test_measuring_is_of_this_machines_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A10G")
    assert cli.main(["tune", "--measure", "--arch", "sm_120"]) == 2
    assert "times this machine's GPU, A10G (sm_86), and not sm_120" in capsys.readouterr().err
    assert cli.main(["tune", "--measure"]) == 2
    assert "no tiles for sm_86 with bfloat16" in capsys.readouterr().err


def test_what_was_measured_is_kept_with_its_cell() -> None:
    cell = table().of("sm_120", "fp8")
    predicted = msgspec.structs.replace(table(), measured=())
    time = Measured("RTX PRO 6000", "sm_120", "fp8", cell[0].candidate, 1, 1024, 8, 4, 2, 1e-5)
    measured = msgspec.json.decode(updated(predicted, Table("3.9.0", cell, (time,))), type=Table)
    assert measured.measured == (time,) and measured.rows == table().rows
    assert msgspec.json.decode(updated(table(), Table("3.9.0", cell, (time,))), type=Table).measured == (
        *table().measured,
        time,
    )
    again = msgspec.json.decode(updated(measured, Table("3.9.0", table().of("sm_90", "fp8"))), type=Table)
    assert again.measured == (time,)
    assert msgspec.json.decode(updated(measured, Table("4.0.0", cell)), type=Table).measured == ()
