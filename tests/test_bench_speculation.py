"""The measurement of speculation: sequences that begin where others did, a drafter of known acceptance, whole runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import tables
from benchmarks.engine import shapes
from benchmarks.engine.cases import DEMO
from benchmarks.speculation import __main__ as command
from benchmarks.speculation import beside, inside_vllm, models, newcomer, overhead, report
from benchmarks.speculation.cells import Cells
from benchmarks.speculation.frozen import Frozen
from benchmarks.speculation.measure import Measurement, Plan, Way, ways
from benchmarks.speculation.neighbour import interval, neighbours
from dovetail.completion import TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.gate import Gate, Limits

pytestmark = pytest.mark.slow

TINY = shapes.MIDDLE | {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
PLAN = Plan(fixed=(1, 3), turns=1, seconds=0.005, warm=0.0, sequences=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[models.Model]:
    threads = torch.get_num_threads()
    yield models.middle(tmp_path_factory.mktemp("middle"), 3, 4, (0, 300), TINY, 100)
    torch.set_num_threads(threads)


def decoded(core: LLMCore, tokens: int) -> tuple[dict[str, list[int]], int, int]:
    """At least so many new tokens of each sequence, and how many tokens were drafted and accepted."""
    ids: dict[str, list[int]] = {}
    drafted = accepted = 0
    while not ids or min(map(len, ids.values())) < tokens:
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch)
            ids.setdefault(name, []).extend(outcome.ids)
            drafted, accepted = drafted + outcome.drafted, accepted + outcome.accepted
    return {name: answer[:tokens] for name, answer in ids.items()}, drafted, accepted


def fixed(frozen: Frozen, drafts: int) -> LLMCore:
    return frozen.thaw(lambda shared: Gate(None, Limits(), drafts) if isinstance(shared, Gate) else shared)


@pytest.mark.parametrize("context", [0, 300])
def test_all_ways_say_the_same_from_the_same_moment(tiny: models.Model, context: int) -> None:
    assert tiny.script is not None
    tiny.script.acceptance = 0.6
    prompts = tiny.prompts(4, context)
    begun = tiny.begin(prompts, ["synthetic"])
    off, drafted, _ = decoded(begun[None].thaw(), 40)
    assert drafted == 0
    successors = tiny.script.successors
    for name, prompt in enumerate(prompts):
        token = successors[prompt[-1]]  # that came at the beginning
        for generated in off[str(name)]:
            token = successors[token]
            assert generated == token
    for core in (fixed(begun["synthetic"], 1), fixed(begun["synthetic"], 3), begun["synthetic"].thaw()):
        assert decoded(core, 40)[0] == off
    assert decoded(begun[None].thaw(), 40)[0] == off


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
def test_the_synthetic_drafter_is_right_as_often_as_it_is_told_to_be(tiny: models.Model, acceptance: float) -> None:
    assert tiny.script is not None
    tiny.script.acceptance = acceptance
    begun = tiny.begin(tiny.prompts(4, 0), ["synthetic"])["synthetic"]
    drafted = accepted = 0
    for turn in range(5):
        tiny.script.turn = turn
        _, more, right = decoded(fixed(begun, 1), 60)
        drafted, accepted = drafted + more, accepted + right
    assert drafted >= 600
    # Five standard deviations; the lots are always the same.
    assert abs(accepted / drafted - acceptance) <= 5 * (acceptance * (1 - acceptance) / drafted) ** 0.5


def test_a_place_has_the_same_luck_however_many_are_drafted(tiny: models.Model) -> None:
    assert tiny.script is not None
    tiny.script.acceptance, tiny.script.turn = 0.5, 7
    begun = tiny.begin(tiny.prompts(1, 0), ["synthetic"])["synthetic"]
    request = begun.thaw().scheduler.running[0]
    long = tiny.script.write(request, 8)
    assert all(tiny.script.write(request, count) == long[:count] for count in range(1, 8))


def test_sequences_that_count_as_computed_have_rows_that_were_written(tiny: models.Model) -> None:
    core = tiny.drafting["synthetic"].thaw()
    layers = core.models.target._layers  # type: ignore[attr-defined]
    for layer in layers:
        cache = layer[1]._cache
        assert cache.keys.any(-1).all() and cache.values.any(-1).all()


def test_the_demo_begins_where_it_was_computed(tmp_path: Path) -> None:
    model = models.demo(tmp_path, 3, 2, (0, 150), ("eagle3", "lookup"))
    for context in model.contexts:
        prompts = model.prompts(2, context)
        assert not context or [len(prompt) for prompt in prompts] == [context] * 2
        begun = model.begin(prompts, ["eagle3", "lookup"])
        off = decoded(begun[None].thaw(), 40)[0]
        for drafter in ("eagle3", "lookup"):
            assert decoded(fixed(begun[drafter], 3), 40)[0] == off
        assert decoded(fixed(begun["eagle3"], 3), 40)[2] > 0


@pytest.mark.proof
def test_a_cell_has_a_row_for_each_drafter_with_all_figures(tiny: models.Model) -> None:
    chosen = list(ways(tiny, PLAN, [0.3, 0.9]))
    assert chosen[0] == Way() and len(chosen) == 1 + 2 * 3
    messages: list[str] = []
    rows = Measurement(tiny, PLAN).cell(300, 4, chosen, messages.append)
    assert [row["drafter"] for row in rows] == ["synthetic 0.3", "synthetic 0.9"] and "turn 1, off " in messages
    for row in rows:
        assert (row["context"], row["batch"], set(row["fixed"])) == (300, 4, {"1", "3"})
        assert min(row["off"], row["gated"], *row["fixed"].values()) > 0
        assert row["best"] in (0, 1, 3) and row["holds"] == (row["gated_to_best"] >= 0.97)
        assert 0 <= row["gated_drafts"] <= 3 and row["gate_us"]["median"] > 0 and row["gate_us"]["steps"] >= 3
    assert rows[0]["accepted"]["1"] < rows[1]["accepted"]["1"]


@pytest.mark.proof
def test_small_batches_of_text_are_several(tmp_path: Path) -> None:
    model = models.demo(tmp_path, 1, 4, (0,), ("lookup",))
    plan = Plan((1,), 1, 0.005, 0.0, 4)
    (row,) = Measurement(model, plan).cell(0, 1, [Way(), Way("lookup", 1), Way("lookup", None)])
    # Four sequences, and at least three steps of each.
    assert row["gate_us"]["steps"] >= 4 * 3


@pytest.mark.proof
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(models, "middle", lambda *sizes: tiny_middle(*sizes))

    def tiny_middle(folder: Path, drafts: int, batch: int, contexts: list[int]) -> models.Model:
        return models_middle(folder, drafts, batch, contexts, TINY, 100)

    models_middle = _MIDDLE
    options = "--contexts 0 200 --batches 1 2 --fixed 1 2 --acceptances 0.5 --turns 1 --seconds 0.002 --warm 0"
    line = ["bench", *options.split(), "--sequences", "2", "--checkpoints", str(tmp_path / "made")]
    line += ["--drafters", "eagle3", "lookup", "--resume", str(tmp_path / "cells.jsonl")]
    monkeypatch.setattr("sys.argv", [*line, "--plot", str(tmp_path / "drawn"), "--json"])
    command.main()
    out, errors = capsys.readouterr()
    results = json.loads(out)
    assert errors.count("of the best") == len(results["cells"]), "a row is said when its cell ends"
    places = [(row["model"], row["drafter"], row["context"], row["batch"]) for row in results["cells"]]
    drafters = [("demo", "eagle3"), ("demo", "lookup"), ("Llama 154 M", "synthetic 0.5")]
    assert sorted(places) == sorted(
        (*one, context, batch) for one in drafters for context in (0, 200) for batch in (1, 2)
    )
    assert (tmp_path / "drawn" / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "drawn" / "matrix.svg").read_text()
    sheets = report.sheets(results)
    assert len(sheets) == 3 and all(len(row) == len(headings) for _, headings, rows in sheets for row in rows)
    monkeypatch.setattr(Measurement, "cell", lambda *_: pytest.fail("a cell that was kept is measured again"))
    command.main()
    assert json.loads(capsys.readouterr().out)["cells"] == results["cells"]
    tables.show(sheets, report.notes(results), as_markdown=True, words=report.WORDS)
    assert "| 200 | 2 |" in capsys.readouterr().out


_MIDDLE = models.middle


def test_cells_are_kept_by_place_and_settings(tmp_path: Path) -> None:
    file, rows = tmp_path / "new" / "cells.jsonl", [{"model": "demo", "context": 0, "batch": 1, "off": 2.5}]
    Cells(file, {"turns": 3}).keep(rows)
    file.write_text(file.read_text() + '\n{"settings": {"tu')  # stopped while it wrote
    Cells(file, {"turns": 5}).keep([rows[0] | {"off": 3.5}])
    assert Cells(file, {"turns": 3}).kept("demo", 0, 1) == rows
    assert Cells(file, {"turns": 5}).kept("demo", 0, 1) == [rows[0] | {"off": 3.5}]
    assert Cells(file, {"turns": 3}).kept("demo", 0, 4) is None and Cells(None, {}).kept("demo", 0, 1) is None


def test_the_wrong_drafter_has_every_weight_but_the_heads_order(tmp_path: Path) -> None:
    own = load_file(DEMO / "drafter" / "model.safetensors")
    wrong = load_file(inside_vllm.wrong_drafter(tmp_path) / "model.safetensors")
    assert wrong.keys() == own.keys()
    assert [name for name in own if not torch.equal(own[name], wrong[name])] == ["lm_head.weight"]
    assert torch.equal(own["lm_head.weight"][0], wrong["lm_head.weight"][-1])


def test_ways_inside_vllm_are_compared_turn_by_turn() -> None:
    rows_of_run = inside_vllm.rows("a drafter", 8, {"K = 3": [100.0, 50.0, 10.0], "gated": [150.0, 50.0, 5.0]})
    assert rows_of_run == [
        ["a drafter", "8", "K = 3", "50", "1.00x", "1.00 to 1.00"],
        ["a drafter", "8", "gated", "50", "1.00x", "0.50 to 1.50"],
    ]


def test_a_row_in_short() -> None:
    row = {"model": "demo", "drafter": "eagle3", "context": 1024, "batch": 1, "off": 400.4, "fixed": {"3": 801.2}}
    assert report.line(row) == "demo, eagle3, context 1,024, batch 1: off 400, K=3 801 tokens/s"
    gated = row | {"gated": 790.0, "gated_to_off": 1.975, "gated_to_best": 0.986, "interval": [0.97, 1.0]}
    assert report.line(gated).endswith("gated 790 tokens/s, 1.98x off, 0.986 (0.97 to 1.00) of the best")


def test_an_assistant_agrees_as_often_as_it_should(tmp_path: Path) -> None:
    target, assistant = shapes.successors(TINY), shapes.successors(TINY, 0.75)
    agreeing = sum(one == other for one, other in zip(target[3:], assistant[3:], strict=True))
    assert agreeing == pytest.approx(0.75 * 397, abs=1) and sorted(target[3:]) == sorted(assistant[3:])


def test_beside_says_who_is_fastest() -> None:
    def cell(engine: str, decode: float, batch: int = 1) -> dict[str, object]:
        return {"case": "demo", "dtype": "float32", "batch": batch, "engine": engine, "settings": "x", "decode": decode}

    cells = [cell("Dovetail", 10.0), cell("Dovetail, gated", 30.0), cell("vLLM", 20.0), cell("Dovetail", 1.0, 16)]
    (_, messages) = beside.notes({"versions": {"torch": "2"}, "cells": cells})
    assert (
        messages
        == "demo, float32, batch 1: 30 tokens/s (Dovetail, gated: x), 1.50x the fastest of the others, 20 (vLLM: x)."
    )


def test_the_interval_of_a_median_leaves_out_as_many_on_both_sides() -> None:
    assert interval([3.0]) == (3.0, 3.0) and interval([2.0, 1.0, 3.0]) == (1.0, 3.0)
    assert interval([float(i) for i in range(25)]) == (7.0, 17.0)


def test_neighbours_end_with_the_measurement() -> None:
    before = children_now()  # of other tests
    with neighbours(1):
        children = children_now() - before
        assert children
    assert not children & children_now()


def children_now() -> set[int]:
    """Processes that this one started."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return set(map(int, listed))


def test_a_newcomer_is_served_in_all_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "_REQUESTS", 1)
    monkeypatch.setattr(newcomer, "_TOKENS", 8)
    rates = newcomer.measured(newcomer.Newcomer(tmp_path), 2)
    (_, headings, rows) = newcomer.sheet(rates)
    assert [len(own) for own in rates.values()] == [2] * 4 and min(min(own) for own in rates.values()) > 0
    assert [len(row) for row in rows] == [len(headings)] * 4 and rows[0][2] == "1.00x"


def test_the_gates_own_time_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = overhead.measured(runs=2, steps=40)
    assert [row["batch"] for row in rows] == [1, 4, 16, 64]
    assert all(row["median"] > 0 for row in rows)
    monkeypatch.setattr(overhead, "measured", lambda runs: rows)
    monkeypatch.setattr("sys.argv", ["overhead", "--json"])
    overhead.main()
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    monkeypatch.setattr("sys.argv", ["overhead", "--markdown"])
    overhead.main()
    assert "| 64 |" in capsys.readouterr().out
