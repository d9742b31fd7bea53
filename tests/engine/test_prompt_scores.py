"""Log probabilities of prompts. test_schedules compares them with the naive loop's, in parts, cached and preempted."""

from __future__ import annotations

import pytest
import torch

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.request import Request
from dovetail.errors import EngineError, InvalidRequest
from tests.engine.checkpoints import batches_of, load_core
from tests.engine.schedules import PROMPTS, Checkpoints

LONG = len(PROMPTS) - 1


def scored(prompt: int, top: int | None = 2, max_tokens: int = 3) -> Completion:
    return Completion(PROMPTS[prompt], max_tokens, sampling=Sampling(temperature=0), prompt_logprobs=top)


@pytest.mark.parametrize("target", ["heads", "latent", "llama", "qwen3"])
def test_a_cached_prompt_is_computed_again_and_reported_once(tiny: Checkpoints, target: str) -> None:
    core = load_core(
        tiny.targets[target], tiny.drafters["eagle3"], max_batch=4, max_batched_tokens=16, context=160, **tiny.settings
    )
    (plain,) = batches_of(core, {"plain": scored(LONG, None)}).values()
    (again,) = batches_of(core, {"again": scored(LONG, None)}).values()
    assert not plain[0].prompt_logprobs
    assert again[0].cached, "or this test would show nothing"
    (first, *rest) = batches_of(core, {"scored": scored(LONG)})["scored"]
    assert first.cached == 0
    assert not any(batch.prompt_logprobs for batch in rest)
    tiny.check_scores(target, LONG, 2, first.prompt_logprobs)
    assert [first, *rest][0].ids == plain[0].ids
    # What it computed is in the cache for others.
    assert batches_of(core, {"last": scored(LONG, None)})["last"][0].cached == again[0].cached


def test_a_preempted_prompt_goes_on_where_it_was(tiny: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    core = load_core(
        tiny.targets["heads"],
        max_batch=4,
        context=128,
        max_batched_tokens=8,
        kv_cache_memory_bytes=1,
        **tiny.settings,
    )
    partly: list[int] = []  # how far the scores of preempted requests were

    def preempt(request: Request) -> None:
        partly.append(request.scores.uncomputed if request.scores is not None else 0)
        genuine(request)

    genuine = core.scheduler._preempt
    monkeypatch.setattr(core.scheduler, "_preempt", preempt)
    prompts = {str(i): 8 + i % 8 for i in range(8)}
    batches = batches_of(core, {name: scored(prompt, max_tokens=20) for name, prompt in prompts.items()})
    assert any(partly), "no prompt was preempted before it was computed"
    for name, prompt in prompts.items():
        tiny.check_scores("heads", prompt, 2, batches[name][0].prompt_logprobs)


def test_a_prompt_of_one_token_has_no_log_probabilities(tiny: Checkpoints) -> None:
    core = load_core(tiny.targets["llama"], max_batch=1, **tiny.settings)
    (batch,) = batches_of(core, {"x": Completion((5,), 1, prompt_logprobs=3)})["x"]
    assert (batch.prompt_logprobs, len(batch.ids)) == ((), 1)


def test_how_many_is_checked(tiny: Checkpoints) -> None:
    core = load_core(tiny.targets["llama"], max_batch=1, **tiny.settings)
    for bad in (-1, 21):
        with pytest.raises(InvalidRequest) as refused:
            core.add("x", Completion((5, 6), 1, prompt_logprobs=bad))
        assert refused.value.param == "prompt_logprobs"


def test_a_value_that_is_not_finite_ends_the_request_only(tiny: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    core = load_core(tiny.targets["llama"], max_batch=2, **tiny.settings)
    model, seen = core.models.target, []

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits = genuine(hidden)
        if len(hidden) > 1:  # the rows of a prompt
            seen.append(len(hidden))
            logits[0, 3] = float("nan")
        return logits

    genuine = model.logits
    monkeypatch.setattr(model, "logits", poisoned)
    core.add("x", scored(5))
    core.add("y", Completion((5,), 2, sampling=Sampling(temperature=0)))
    outcomes = [outcome for _ in range(4) for outcome in core.step()]
    errors = [(name, outcome) for name, outcome in outcomes if isinstance(outcome, EngineError)]
    assert seen
    assert [(name, "finite" in error.message) for name, error in errors] == [("x", True)]
    assert sum(len(outcome.ids) for name, outcome in outcomes if isinstance(outcome, TokenBatch) and name == "y") == 2
