"""Step times are measured with real steps that leave nothing behind, stored, and read again if they still apply."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.completion import Completion, Sampling, total
from dovetail.engine import profile
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import LOOKUP
from dovetail.engine.step import StepLoop
from dovetail.errors import EngineError
from dovetail.gate import CostModel, Rounds
from tests.engine.checkpoints import load_core, run, write_drafter, write_mtp_target

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)
WANTED = {str(i): Completion(tuple(range(2, 5 + 7 * i)), 90, sampling=GREEDY) for i in range(5)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_mtp_target(root / "target", eos_token_id=0), write_drafter(root / "drafter")


def gated(folders: tuple[Path, Path | str], **options: Any) -> LLMCore:
    given: dict[str, Any] = {"draft_tokens": 2, "max_draft_tokens": 4, "gate": "measured", "threads": 1, "max_batch": 4}
    return load_core(*folders, **given | options)


def test_the_gate_begins_with_the_acceptance_that_is_known(folders: tuple[Path, Path]) -> None:
    assert gated(folders, acceptance=0.25).scheduler.gate.expected_acceptance == pytest.approx([0.25] * 4)
    assert gated(folders).scheduler.gate.expected_acceptance == pytest.approx([0.7] * 4)


def costs(core: LLMCore) -> CostModel:
    assert core.scheduler.gate.costs is not None
    return core.scheduler.gate.costs


def noting(measure: Any, rounds: list[Rounds]) -> Any:
    def noted(*arguments: Any) -> list[Rounds]:
        found: list[Rounds] = measure(*arguments)
        rounds.extend(found)
        return found

    return noted


def sizes(rounds: list[Rounds]) -> set[tuple[int, int]]:
    return {(group.batch, drafts) for group in rounds for drafts in group.drafts}


def noting_lengths(propose: Any, lengths: set[int]) -> Any:
    def noted(*arguments: Any) -> Any:
        drafts = propose(*arguments)
        lengths.update(len(draft.tokens) for draft in drafts)
        return drafts

    return noted


@pytest.mark.parametrize("drafter", ["eagle3", "mtp", LOOKUP])
def test_it_measures_and_leaves_nothing_behind(
    folders: tuple[Path, Path], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups too, which find nothing in random prompts."""
    rounds: list[Rounds] = []
    monkeypatch.setattr(profile._Profiler, "_rounds", noting(profile._Profiler._rounds, rounds))
    lengths: set[int] = set()
    monkeypatch.setattr(profile.RandomDrafts, "propose", noting_lengths(profile.RandomDrafts.propose, lengths))
    core = gated((folders[0], folders[1] if drafter == "eagle3" else drafter))
    core.check_integrity()
    gauges = core.gauges()
    assert total(gauges, "free_blocks") == total(gauges, "total_blocks") and not core.live
    assert total(gauges, "steps_total") == total(gauges, "drafted_total") == total(gauges, "prompt_tokens_total") == 0
    assert costs(core).parameters[0] > 0
    assert {(1, 0), (1, 4), (4, 0), (4, 4)} <= sizes(rounds) <= {(batch, k) for batch in (1, 4) for k in (0, 1, 3, 4)}
    assert 4 in lengths if drafter != LOOKUP else lengths <= {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_greedy_output_is_the_same(folders: tuple[Path, Path]) -> None:
    expected = run(load_core(folders[0]), WANTED)
    for batch in (1, 4):
        core = gated(folders, max_batch=batch, kv_cache_memory_bytes=1 << 16)
        assert run(core, WANTED) == expected
        assert total(core.gauges(), "gate_decisions_total")


def test_a_context_that_is_too_small_to_measure_in_is_served_without_a_gate(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    core = gated(folders, context=24)
    assert core.scheduler.gate.costs is None and core.info.draft_tokens == 2 and "could not be measured" in caplog.text
    assert run(core, {"a": Completion((2, 3, 4), 12, sampling=GREEDY)})["a"]
    assert core.counters().drafted


def test_as_large_a_batch_is_measured_as_the_cache_holds(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks for each sequence, of eight."""
    rounds: list[Rounds] = []
    monkeypatch.setattr(profile._Profiler, "_rounds", noting(profile._Profiler._rounds, rounds))
    for overlap in (False, True):
        rounds.clear()
        core = gated(folders, max_batch=16, context=128, kv_cache_memory_bytes=1, async_scheduling=overlap)
        assert total(core.gauges(), "total_blocks") == 8
        assert {(1, 0), (1, 4), (2, 0), (2, 4)} <= sizes(rounds) and max(group.batch for group in rounds) == 2
        core.check_integrity()


def fail(*arguments: object) -> Any:
    raise MemoryError("it fails")


@pytest.mark.parametrize(
    "where",
    [(StepLoop, "_run"), (profile.RandomDrafts, "propose"), (profile.RandomDrafts, "start")],
    ids=["a step", "drafting", "a beginning"],
)
def test_a_profile_that_fails_is_no_reason_not_to_serve(
    folders: tuple[Path, Path],
    where: tuple[type, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*where, fail)
        core = gated(folders, cost_folder=tmp_path / "costs")
    assert "could not be measured" in caplog.text and core.scheduler.gate.costs is None
    core.check_integrity()
    expected = run(load_core(folders[0]), WANTED)
    assert run(core, WANTED) == expected
    assert core.info.draft_tokens == 2 and core.counters().drafted
    core.close()
    assert not (tmp_path / "costs").exists()


def test_an_exit_ends_a_profile(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StepLoop, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gated(folders)


def test_weights_that_are_no_numbers_are_met_by_requests(
    folders: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by a start that does not end."""
    shutil.copytree(folders[0], tmp_path / "sick")
    tensors = load_file(folders[0] / "model.safetensors")
    tensors["model.embed_tokens.weight"][:] = torch.nan
    save_file(tensors, tmp_path / "sick" / "model.safetensors")
    core = gated((tmp_path / "sick", folders[1]))
    assert "could not be measured" in caplog.text
    core.add("a", Completion((2, 3), 9, sampling=GREEDY))
    ((_, outcome),) = core.step()
    assert isinstance(outcome, EngineError) and "not a finite number" in str(outcome) and not core.live


def test_a_model_is_kept_and_found_with_what_was_learned(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = gated(folders, cost_folder=tmp_path / "costs")
    run(core, WANTED)
    learned = costs(core)
    core.close()
    [cost_path] = (tmp_path / "costs").iterdir()
    assert len(learned.acceptance) == 4 and msgspec.json.decode(cost_path.read_bytes(), type=CostModel) == learned

    def never(*arguments: object) -> None:
        raise AssertionError("it was measured before")

    with monkeypatch.context() as patch:
        patch.setattr(profile._Profiler, "more", never)
        patch.setattr(CostModel, "try_on", lambda costs, rounds: rounds.batch == 1)
        again = gated(folders, cost_folder=tmp_path / "costs")
    assert costs(again).parameters == learned.parameters and costs(again).acceptance == learned.acceptance
    # A few steps contradict it: costs are measured, and acceptance is still known.
    with monkeypatch.context() as patch:
        patch.setattr(CostModel, "try_on", lambda costs, rounds: False)
        again = gated(folders, cost_folder=tmp_path / "costs")
    assert costs(again).parameters != learned.parameters and costs(again).acceptance == learned.acceptance
    # Of another number of drafts, batch, type, drafter or context it says nothing.
    others: list[dict[str, Any]] = [
        {"max_draft_tokens": 3},
        {"max_batch": 2},
        {"dtype": "bfloat16"},
        {"context": 100},
    ]
    for number, options in enumerate(others, 2):
        gated(folders, cost_folder=tmp_path / "costs", **options).close()
        assert len(list((tmp_path / "costs").iterdir())) == number
    gated((folders[0], "mtp"), cost_folder=tmp_path / "costs").close()
    assert len(list((tmp_path / "costs").iterdir())) == len(others) + 2 and cost_path.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"batches": [1]}', b"null"],
    ids=["empty", "cut", "a list", "an empty object", "no text", "a part", "null"],
)
def test_a_damaged_file_is_measured_again(
    folders: tuple[Path, Path], tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gated(folders, cost_folder=tmp_path).close()
    [cost_path] = tmp_path.iterdir()
    cost_path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        core = gated(folders, cost_folder=tmp_path)
    assert "cannot be used" in caplog.text and costs(core).parameters
    core.close()
    assert msgspec.json.decode(cost_path.read_bytes(), type=CostModel)


def test_a_folder_that_cannot_be_written_costs_a_warning(
    folders: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    core = gated(folders, cost_folder=tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        core.close()
    assert "cannot be written" in caplog.text and costs(core)


def test_limits_hold_without_a_gate_too(folders: tuple[Path, Path]) -> None:
    core = load_core(*folders, draft_tokens=4, max_draft_tokens=2, speculate_up_to_batch=1)
    assert core.info.draft_tokens == 2
    run(core, {"a": Completion((2, 3), 12, sampling=GREEDY)})
    alone = core.counters().drafted
    assert alone > 0
    run(core, {str(i): Completion((2, 3, i), 12, sampling=GREEDY) for i in range(2, 6)})
    assert core.scheduler.gate.counts().decisions["batch"] > 0


def test_a_step_in_which_somebody_ends_is_no_measure(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafts are not counted, so its time would count for a step with fewer drafts."""
    core = gated(folders)
    observations: list[tuple[list[Any], float | None]] = []
    observe = core.scheduler.gate.observe

    def noted(drafted: Any, seconds: float | None) -> None:
        observations.append((list(drafted), seconds))
        observe(drafted, seconds)

    monkeypatch.setattr(core.scheduler.gate, "observe", noted)
    run(core, {"a": Completion((2, 3, 4), 40, sampling=GREEDY)})
    assert observations[-1] == ([], None)
    assert sum(seconds is not None for _, seconds in observations) > 3
