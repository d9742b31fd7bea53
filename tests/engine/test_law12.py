"""Law 12, greedy: counts of drafts, constraints and ends inside windows. test_schedules has the law for everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Drafter
from tests.engine.checkpoints import LATENT, ByteTokenizer, load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton, Counted
from tests.engine.drafters import Oracle, use
from tests.examples import examples

GREEDY = Sampling(temperature=0)
PROMPTS = {"a": (2, 3, 4), "b": tuple(range(5, 40)), "c": (9,), "d": (11, 80, 7, 7, 60, 3)}


@pytest.fixture(scope="module", params=["expanded cache", "latent cache"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {} if request.param == "expanded cache" else LATENT
    return write_target(tmp_path_factory.mktemp("target"), **changes)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))


def core(
    target: Path, drafter: Path | None, k: int, max_batch: int = 3, with_drafter: Drafter | None = None
) -> LLMCore:
    made = load_core(target, drafter, draft_tokens=k, max_batch=max_batch)
    return made if with_drafter is None else use(made, with_drafter)


def completions(**fields: object) -> dict[str, Completion]:
    return {name: Completion(prompt, 24, sampling=GREEDY, **fields) for name, prompt in PROMPTS.items()}  # type: ignore[arg-type]


def plain(target: Path, wanted: dict[str, Completion]) -> dict[str, list[int]]:
    """One request at a time, no drafter: what every other run must equal."""
    outputs: dict[str, list[int]] = {}
    for name, completion in wanted.items():
        outputs |= run(core(target, None, 0), {name: completion})
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("k", range(1, 6))
@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_a_good_drafter_changes_nothing_but_the_steps(target: Path, drafter: Path, k: int, wrong: float) -> None:
    wanted = completions()
    truth = plain(target, wanted)
    fast = core(target, drafter, k, max_batch=4, with_drafter=Oracle(truth, wrong, seed=k))
    assert run(fast, wanted, {4: "d"}) == truth
    counters = fast.counters()
    assert 0 < counters.accepted <= counters.drafted
    assert counters.steps < 29
    if not wrong:
        assert counters.accepted == counters.drafted


def test_draft_tokens_of_the_request(target: Path, drafter: Path) -> None:
    wanted = {name: Completion(p, 24, sampling=GREEDY, draft_tokens=i) for i, (name, p) in enumerate(PROMPTS.items())}
    truth = plain(target, wanted)
    fast = core(target, drafter, 2, with_drafter=Oracle(truth, 0.2))
    assert run(fast, wanted) == truth
    none = core(target, drafter, 2)
    run(none, {"a": wanted["a"]})
    assert none.counters().drafted == 0


def test_constraint_calls_balance(target: Path, drafter: Path) -> None:
    """What was advanced through drafts is rolled back: the constraint ends where the output ends."""
    truth = plain(target, {"a": Completion(PROMPTS["a"], 24, sampling=GREEDY, constraint=Automaton.sample(0))})
    counted = Counted(Automaton.sample(0))
    fast = core(target, drafter, 4, with_drafter=Oracle(truth, 0.3))
    out = run(fast, {"a": Completion(PROMPTS["a"], 24, sampling=GREEDY, constraint=counted)})
    assert out == truth and counted.taken == truth["a"]


# 20 with the profile `proof`.
@pytest.mark.slow
@examples(4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ends_inside_windows(target: Path, drafter: Path, data: st.DataObject) -> None:
    """Stop strings, end tokens and max_tokens end a sequence at the same token wherever windows fall."""
    free = plain(target, completions())
    wanted: dict[str, Completion] = {}
    for name, prompt in PROMPTS.items():
        at = data.draw(st.integers(0, 22))
        width = data.draw(st.integers(1, 3))
        text = ByteTokenizer().decode(free[name][at : at + width])
        stop = (text, "never") if data.draw(st.booleans()) else ()
        wanted[name] = Completion(prompt, data.draw(st.integers(1, 24)), sampling=GREEDY, stop=stop)
    truth = plain(target, wanted)
    for name, completion in wanted.items():
        text = ByteTokenizer().decode(truth[name])
        assert truth[name] == free[name][: len(truth[name])]
        assert len(truth[name]) == completion.max_tokens or 1 in truth[name] or text.endswith(completion.stop[0])
    k = data.draw(st.integers(1, 5))
    assert run(core(target, drafter, k, with_drafter=Oracle(free, 0.1)), wanted) == truth


def test_end_token_inside_a_window(tmp_path: Path, drafter: Path) -> None:
    free = plain(write_target(tmp_path / "free"), completions())
    eos = free["a"][9]
    target = write_target(tmp_path / "ends", eos_token_id=[1, eos])
    truth = plain(target, completions())
    assert truth["a"] == free["a"][: free["a"].index(eos) + 1]
    for k in (2, 5):
        assert run(core(target, drafter, k, with_drafter=Oracle(free, 0.0)), completions()) == truth
