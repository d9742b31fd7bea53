"""The core at its limits: dead ends, extreme sampling, wrong sizes, a full queue, both dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.completion import Completion, Constraint, Sampling, TokenBatch
from dovetail.errors import CheckpointError, ContextExceeded, EngineBusy, EngineError, InvalidRequest
from tests.engine.checkpoints import load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton
from tests.engine.drafters import Oracle, use

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


def test_a_dead_end_ends_only_its_own_request(pair: tuple[Path, Path]) -> None:
    core = load_core(*pair, draft_tokens=3)
    constraint: Constraint = Automaton([{5: 1}, {6: 2, 7: 2}, {}])
    core.add("stuck", Completion((2, 3), 9, sampling=GREEDY, constraint=constraint))
    core.add("fine", Completion((2, 3), 9, sampling=GREEDY))
    outcomes: dict[str, list[TokenBatch | EngineError]] = {"stuck": [], "fine": []}
    while core.live:
        for name, outcome in core.step():
            outcomes[name].append(outcome)
        core.check_integrity()
    assert isinstance(outcomes["stuck"][-1], EngineError)
    assert sum(len(o.ids) for o in outcomes["fine"] if isinstance(o, TokenBatch)) == 9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_that_ends_with_the_end_token(pair: tuple[Path, Path], temperature: float) -> None:
    """After the end token nothing may come: a draft of it is the last of its window, and no dead end."""
    sentence = [5, 9, 5, 8, 1]

    def completion() -> Completion:
        states = [{token: i + 1} for i, token in enumerate(sentence)]
        return Completion((2, 3), 20, sampling=Sampling(temperature, seed=3), constraint=Automaton([*states, {}]))

    for k in range(1, 6):
        core = load_core(*pair, draft_tokens=k)
        assert run(core, {"a": completion()})["a"] == sentence
        use(core, Oracle({"a": sentence}, wrong=0.0))
        core.add("a", completion())
        batches = []
        while core.live:
            batches += [outcome for _, outcome in core.step() if isinstance(outcome, TokenBatch)]
        assert [t for batch in batches for t in batch.ids] == sentence
        assert batches[-1].finish == "stop" and all(batch.accepted <= batch.drafted for batch in batches)


@pytest.mark.parametrize(
    "sampling", [Sampling(1e-39), Sampling(1e30), Sampling(seed=-(2**80)), Sampling(1, 1e-9, 96), Sampling(1, 1e-300)]
)
def test_extreme_sampling(pair: tuple[Path, Path], sampling: Sampling) -> None:
    core = load_core(*pair, draft_tokens=3)
    outputs = run(core, {"a": Completion((2, 3, 4), 12, sampling=sampling)})
    if sampling.temperature < 1 or sampling.top_p < 1:
        assert outputs == run(core, {"a": Completion((2, 3, 4), 12, sampling=GREEDY)})


def test_bfloat16_runs(pair: tuple[Path, Path]) -> None:
    """No exactness is promised there; drafting and plain decoding both give as many tokens as were asked for."""
    core = load_core(*pair, draft_tokens=3, dtype="bfloat16")
    out = run(core, {f"r{i}": Completion((5,) * (i * 9 + 1), 12, sampling=GREEDY) for i in range(4)})
    assert all(len(ids) == 12 or ids[-1] == 1 for ids in out.values())


@pytest.mark.parametrize("context", [1, 257])
def test_a_context_that_the_model_does_not_have(pair: tuple[Path, Path], context: int) -> None:
    with pytest.raises(EngineError, match=f"context must be from 2 to the model's 256, not {context}"):
        load_core(pair[0], context=context)


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer has 97 ids.*vocab_size is 96"):
        load_core(write_target(tmp_path, vocab_size=96))


def test_the_queue_is_bounded(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.engine.scheduler.MAX_WAITING", 2)
    core = load_core(*pair)
    for name in "ab":
        core.add(name, Completion((2,), 2))
    with pytest.raises(EngineBusy):
        core.add("c", Completion((2,), 2))
    with pytest.raises(ContextExceeded):
        core.add("d", Completion((2,) * 256, 2))


def test_an_id_that_is_here_already_is_refused(pair: tuple[Path, Path]) -> None:
    core = load_core(*pair, draft_tokens=3)
    for _ in range(2):
        core.add("a", Completion((2, 3), 4))
        with pytest.raises(InvalidRequest, match="already"):
            core.add("a", Completion((2, 3), 4))
        core.step()
        core.check_integrity()
        core.cancel("a")
    core.check_integrity()


def test_drafts_that_the_constraint_cuts_count_as_drafted(pair: tuple[Path, Path]) -> None:
    """Or acceptance would look better the more of its drafts are thrown away unseen."""
    core = load_core(*pair, draft_tokens=3)
    only_five = Automaton([{5: 0}])
    use(core, Oracle({"a": [7] * 20}, wrong=0.0))
    core.add("a", Completion((2, 3), 12, sampling=Sampling(temperature=0), constraint=only_five))
    batches = []
    while core.live:
        batches += [outcome for _, outcome in core.step() if isinstance(outcome, TokenBatch)]
    assert {t for batch in batches for t in batch.ids} == {5}
    assert sum(batch.drafted for batch in batches) > 5
    assert core.counters().accepted == sum(batch.accepted for batch in batches) == 0
