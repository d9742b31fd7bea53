"""Draft models and parallel drafters: they catch up, reuse accepted drafts, stop, and draft in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.completion import Completion, Sampling, total
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting import draft_model
from dovetail.engine.drafting.base import Draft
from tests.engine import naive
from tests.engine.checkpoints import LLAMA, load_core, run, write_drafter, write_target

GREEDY = Sampling(temperature=0)
PROMPT = tuple(range(2, 90))


def core(target: Path, drafter: Path, k: int = 3, **options: Any) -> LLMCore:
    return load_core(target, drafter, draft_tokens=k, **options)


def watched(model: Any, name: str) -> list[int]:
    """How many tokens each pass of `model` computes, from now on."""
    passes: list[int] = []
    forward = getattr(model, name)

    def counted(batch: Any, *rest: Any) -> Any:
        passes.append(len(batch.tokens))
        return forward(batch, *rest)

    setattr(model, name, counted)
    return passes


def test_guesses_that_stood_are_not_computed_again(tmp_path: Path) -> None:
    """A target that drafts for itself: all drafts stand, and a window costs the last draft and the target's token."""
    target = write_target(tmp_path / "target", eos_token_id=0)
    engine = core(target, target)
    drafter: Any = engine.models.drafter._drafter._drafter  # type: ignore[union-attr]
    passes = watched(drafter._model, "forward")
    run(engine, {"a": Completion(PROMPT, 41, sampling=GREEDY)})
    counters = engine.counters()
    assert counters.accepted == counters.drafted == 30 and counters.steps == 11
    assert passes == [88, 1, 1, 1] + 9 * [2, 1, 1]


def test_drafts_stop_where_its_positions_do(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", eos_token_id=0)
    short = write_target(tmp_path / "short", base=LLAMA, num_hidden_layers=1, max_position_embeddings=110)
    for prompt, drafts in ((PROMPT, True), (tuple(range(2, 97)) * 2, False)):
        engine = core(target, short, context=256)
        seen = naive.check_drafts(engine, naive.alone(naive.load(short)))
        out = run(engine, {"a": Completion(prompt, 40, sampling=GREEDY)})
        assert len(out["a"]) == 40
        assert (engine.counters().drafted > 0) == drafts and seen[-1] == 0


def test_catching_up_with_what_only_the_target_has_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without drafts leaves its prompt in the target's cache alone; the next has drafts a few steps later."""
    monkeypatch.setattr(draft_model, "_CHUNK", 32)
    target = write_target(tmp_path / "target", eos_token_id=0)
    other = write_target(tmp_path / "other", base=LLAMA, num_hidden_layers=1)
    engine = core(target, other)
    drafter: Any = engine.models.drafter._drafter._drafter  # type: ignore[union-attr]
    passes = watched(drafter._model, "forward")
    with torch.inference_mode():
        seen = naive.check_drafts(engine, naive.alone(naive.load(other)))
    plain = run(engine, {"a": Completion(PROMPT, 20, sampling=GREEDY, draft_tokens=0)})
    assert not seen and not passes
    assert run(engine, {"b": Completion(PROMPT, 20, sampling=GREEDY)}) == {"b": plain["a"]}
    assert seen[:2] == [0, 0] and seen[2] == 3
    assert passes[:2] == [32, 32] and total(engine.gauges(), "prompt_tokens_cached_total") == 80
    # Now its own cache has the prompt too.
    passes.clear()
    run(engine, {"c": Completion(PROMPT, 20, sampling=GREEDY)})
    assert passes[0] < 16


def test_a_parallel_drafter_drafts_in_one_pass(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", eos_token_id=0)
    drafter = write_drafter(tmp_path / "drafter", speculators_model_type="peagle", mask_token_id=96)
    engine = core(target, drafter)
    network: Any = engine.models.drafter._drafter._drafter._network  # type: ignore[union-attr]
    passes = watched(network, "run")
    run(engine, {"a": Completion(PROMPT, 20, sampling=GREEDY)})
    counters = engine.counters()
    # The prompt's slots; then masked slots and the slots of what was accepted, in turns, but for no masks at the end.
    assert passes[:2] == [88, 2] and len(passes) <= 2 * counters.steps


@pytest.mark.parametrize("kind", ["draft model", "eagle3"])
def test_drafts_that_were_not_taken(kind: str, tmp_path: Path) -> None:
    """Somebody else's drafts are verified instead, and stand: what was guessed does not stay in the cache."""
    target = write_target(tmp_path / "target", eos_token_id=0)
    plain = load_core(target)
    truth = run(plain, {"a": Completion(PROMPT, 30, sampling=GREEDY)})["a"]
    if kind == "draft model":
        folder = write_target(tmp_path / "other", base=LLAMA, num_hidden_layers=1)
    else:
        folder = write_drafter(tmp_path / "drafter")
    engine = core(target, folder)
    drafter: Any = engine.models.drafter
    model = naive.load(target, drafter.aux_layers)
    reference = naive.chained(naive.Eagle3Reference(folder, model), model) if drafter.aux_layers else None
    with torch.inference_mode():
        seen = naive.check_drafts(engine, reference or naive.alone(naive.load(folder)))
    checked = drafter.propose

    def replaced(requests: Any, counts: Any) -> list[Draft]:
        checked(requests, counts)
        starts = [len(request.tokens) - request.prompt_length for request in requests]
        return [Draft(truth[start : start + count]) for start, count in zip(starts, counts, strict=True)]

    drafter.propose = replaced
    assert run(engine, {"a": Completion(PROMPT, 30, sampling=GREEDY)}) == {"a": truth}
    assert engine.counters().accepted == engine.counters().drafted == sum(seen) > 20
