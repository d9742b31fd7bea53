"""GPUs as people write them, and as a driver reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import PlanError
from dovetail.plan import hardware
from dovetail.plan.hardware import KINDS

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8x B200", 8, "B200"),
        ("8xH100", 8, "H100"),
        ("b200", 1, "B200"),
        ("8 × H200", 8, "H200"),
        ("2x A100-40GB", 2, "A100 40GB"),
        ("4x RTX PRO 6000", 4, "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, "RTX PRO 6000"),
        ("5090", 1, "RTX 5090"),
        ("NVIDIA H100 80GB HBM3", 1, "H100"),
        ("h100 nvl", 1, "H100 NVL"),
        ("8x GB200", 8, "GB200"),
        ("8x MI300X", 8, "MI300X"),
        ("8x96GB", 8, "96GB GPU"),
        ("96 gb", 1, "96GB GPU"),
    ],
)
def test_gpus_as_people_write_them(text: str, count: int, name: str) -> None:
    gpus = hardware.parse(text)
    assert (gpus.count, gpus.gpu.name) == (count, name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_read_by_its_name_and_has_about_its_memory(kind: hardware.Gpu) -> None:
    assert hardware.parse(f"8x {kind.name}").gpu == kind
    assert kind.size * GIB * 0.9 < kind.memory <= kind.size * GIB


def test_the_memory_of_a_size_alone_is_a_little_less() -> None:
    assert 0.98 * 96 * GIB < hardware.parse("8x96GB").gpu.memory < 96 * GIB
    assert hardware.parse("8x96GB").gpu.capability is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"give a number and a kind, like '8x B200' or '8x96GB'"),
        ("0x B200", r"give a number and a kind"),
        ("99999999x B200", r"give a number and a kind"),
        ("8x", r"no kind is called '8x'; known are H100"),
        ("8x B20O", r"no kind is called 'B20O'; did you mean B200"),
        ("8x0GB", r"no kind is called '0GB'"),
        ("A100", r"several kinds are called 'A100'; did you mean A100 40GB or A100 80GB\?"),
        ("RTX 6000", r"did you mean RTX PRO 6000 or RTX 6000 Ada\?"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        hardware.parse(text)
    assert "\n" not in refusal.value.message


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called nvidia-smi, first on the path, that prints what the file `rows` beside it holds."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncat "$(dirname "$0")/rows"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


B200 = "{0}, GPU-{0}-aaaa, NVIDIA B200, 183359, 10.0\n"


def test_gpus_as_the_driver_reports_them(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (driver / "rows").write_text("".join(B200.format(i) for i in range(8)))
    detected = hardware.detect()
    assert detected == hardware.parse("8x B200")
    for visible, count in (("0,1", 2), ("GPU-3-aaaa", 1), ("", 0), ("-1", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        detected = hardware.detect()
        assert (detected.count if detected else 0) == count


def test_an_unknown_kind_is_taken_as_reported(driver: Path) -> None:
    (driver / "rows").write_text("0, GPU-0, NVIDIA Z999, 1024000, 14.0\n")
    detected = hardware.detect()
    assert detected is not None
    assert (detected.gpu.name, detected.gpu.memory, detected.gpu.capability) == ("NVIDIA Z999", 1000 * GIB, (14, 0))
    assert detected.gpu.bandwidth is None


@pytest.mark.parametrize("text", ["a" + " " * 60_000 + "b", "8x" * 50_000, "9" * 5000 + "x B200"], ids=len)
def test_long_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(PlanError, match=r"^gpus is .{80}: give a number and a kind") as refusal:
        hardware.parse(text)
    assert len(refusal.value.message) < 200


def test_mixed_gpus_count_as_equally_many_of_the_smallest(driver: Path) -> None:
    (driver / "rows").write_text(B200.format(0) + "1, GPU-1, NVIDIA H100 80GB HBM3, 81559, 9.0\n")
    detected = hardware.detect()
    assert detected is not None
    assert str(detected) == "2x H100"


@pytest.mark.parametrize("rows", ["", "No devices were detected\n", "0, GPU-0, NVIDIA B200, [N/A], 10.0\n"])
def test_without_gpus_nothing_is_detected(driver: Path, rows: str) -> None:
    (driver / "rows").write_text(rows)
    assert hardware.detect() is None


def test_a_driver_that_fails_hangs_or_is_absent_detects_nothing(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.detect() is None  # no rows: cat fails
    (driver / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    assert hardware.detect(timeout=0.05) is None
    monkeypatch.setenv("PATH", str(driver / "nowhere"))
    assert hardware.detect() is None
