"""`dovetail bench compare`: two results beside each other."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.bench.comparison import compare
from dovetail.bench.figures import Calls, Cell
from dovetail.bench.plan import Plan
from dovetail.bench.result import Client, Result
from dovetail.cli import main
from dovetail.errors import InvalidRequest

PLAN = Plan((256, 1024), (1,), ("prose",), 8, 8, 1)


def result(speeds: dict[int, list[float | None]], url: str = "http://a:1", **changes: Any) -> Result:
    """Waves of these decode speeds, by context."""
    cells = tuple(
        Cell(url, context, 1, "prose", "off", waves=tuple(waves), because=None if waves else "down")
        for context, waves in speeds.items()
    )
    whole = Result(("dovetail",), "1", "here", PLAN, {url: "m"}, cells, (), Client(0.1, 1.0))
    return msgspec.structs.replace(whole, **changes)


def noisy(speed: float, seed: int, waves: int = 12) -> list[float | None]:
    draw = random.Random(seed)
    return [speed * draw.uniform(0.95, 1.05) for _ in range(waves)]


def test_ratios_by_cell_and_of_all() -> None:
    compared = compare(result({256: [10.0] * 3, 1024: [8.0] * 3}), result({256: [20.0] * 3, 1024: [4.0] * 3}))
    assert [(cell.context, cell.before, cell.after, cell.ratio) for cell in compared.cells] == [
        (256, 10, 20, 2),
        (1024, 8, 4, 0.5),
    ]
    assert compared.ratio == pytest.approx(1) and compared.missing == compared.wrong == ()
    assert compared.slower(0.97) == ["1024 x 1 prose, drafting off"]


def test_noise_is_not_slower_and_a_tenth_is() -> None:
    before = result({256: noisy(100, 1), 1024: noisy(50, 2)})
    assert compare(before, result({256: noisy(100, 3), 1024: noisy(50, 4)})).slower(0.97) == []
    slower = compare(before, result({256: noisy(90, 5), 1024: noisy(45, 6)})).slower(0.97)
    assert slower[0] == "all cells"


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_has_the_ratio_in_it(seed: int) -> None:
    compared = compare(result({256: noisy(100, 2 * seed)}), result({256: noisy(97, 2 * seed + 1)}))
    assert compared.interval.low <= compared.ratio <= compared.interval.high
    assert compared.cells[0].interval == compared.interval


def test_with_two_waves_a_cell_has_no_interval() -> None:
    assert compare(result({256: [9.0, 10.0]}), result({256: [9.0, 10.0, 11.0]})).cells[0].interval is None


def test_a_server_at_another_address_is_the_same_endpoint() -> None:
    assert len(compare(result({256: [1.0]}), result({256: [1.0]}, "http://b:2")).cells) == 1


def test_cells_without_figures_are_named() -> None:
    before, after = result({256: [1.0], 1024: []}), result({256: [1.0, None], 512: [2.0]})
    assert compare(before, after).missing == ("1024 x 1 prose, drafting off", "512 x 1 prose, drafting off")
    with pytest.raises(InvalidRequest, match="no cell has figures in both results"):
        compare(result({256: []}), after)


def written(folder: Path, name: str, of: Result) -> str:
    path = folder / name
    path.write_bytes(msgspec.json.encode(of))
    return str(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = (written(tmp_path, name, result({256: [speed] * 4})) for name, speed in (("f", 10.0), ("s", 9.0)))
    assert main(["bench", "compare", fast, slow]) == 0
    assert "0.900" in capsys.readouterr().out
    assert main(["bench", "compare", fast, slow, "--fail-below", "0.97"]) == 1
    assert "all cells: slower than 0.97 times" in capsys.readouterr().out
    assert main(["bench", "compare", slow, fast, "--fail-below", "0.97", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slower"] == []


def test_wrong_calls_of_the_later_result_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = result({256: [1.0]})
    wrong = msgspec.structs.replace(sound.cells[0], kind="calls", calls=Calls(3, 1, "no JSON"))
    after = msgspec.structs.replace(sound, cells=(*sound.cells, wrong))
    assert main(["bench", "compare", written(tmp_path, "a", sound), written(tmp_path, "b", after)]) == 1
    assert "calls are wrong in the later result" in capsys.readouterr().out


def test_a_cell_that_is_missing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = result({256: [1.0], 1024: [1.0]}), result({256: [1.0], 1024: []})
    assert main(["bench", "compare", written(tmp_path, "a", before), written(tmp_path, "b", after)]) == 2
    assert "1024 x 1 prose, drafting off: not compared" in capsys.readouterr().out


def test_an_interval_that_reaches_below_is_not_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [written(tmp_path, str(i), result({256: waves})) for i, waves in enumerate(([9.0, 10.0], [9.0, 10.0]))]
    assert main(["bench", "compare", *files, "--fail-below", "0.97"]) == 0
    assert "not sure" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"cells": 3}', "\ud800"], ids=repr)
def test_a_file_that_is_no_result_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert main(["bench", "compare", str(tmp_path / "bad"), str(tmp_path / "bad")]) == 2
    assert str(tmp_path / "bad") in capsys.readouterr().err


@pytest.mark.parametrize("words", [["compare"], ["compare", "a"], ["compare", "a", "b", "--fail-below", "0"]])
def test_bad_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *words])
    assert end.value.code == 2
