"""Law 12 over everything at once: random schedules give, for every request, the naive single-request loop's ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import total
from tests.engine.checkpoints import load_core
from tests.engine.processors import EXACT
from tests.engine.schedules import MAX_TOKENS, PROMPTS, WANTED, Checkpoints, schedule
from tests.examples import examples


# 10 in `make test`, 200 with the profile `proof`.
@examples(40)
@given(seed=st.integers(0, 2**64))
def test_schedules(tiny: Checkpoints, seed: int) -> None:
    schedule(tiny, seed, None)


# By each kernel 20 with the profile `proof`; 10,000 in tests/engine/prove_schedules.py, which needs no Hypothesis.
@pytest.mark.slow
@pytest.mark.parametrize("path", EXACT[1:])
@examples(4)
@given(seed=st.integers(0, 2**64))
def test_schedules_by_every_kernel(tiny_by: Callable[[str], Checkpoints], path: str, seed: int) -> None:
    schedule(tiny_by(path), seed, None)


@pytest.mark.slow
def test_the_schedules_cover_all_cases(tiny: Checkpoints) -> None:
    """The truths differ, some stop early, and a small cache does preempt: or the test above would show nothing."""
    truths = [tiny.truth("heads", prompt, kind) for prompt in range(len(PROMPTS)) for kind in WANTED]
    assert len({tuple(truth) for truth in truths}) > len(truths) * 0.6
    lengths = [len(truth) for truth in truths]
    assert len(truths) / 5 < sum(length == MAX_TOKENS for length in lengths) < len(truths) * 4 / 5
    core = load_core(
        tiny.targets["heads"],
        tiny.drafters["eagle3"],
        draft_tokens=3,
        max_batch=4,
        context=128,
        kv_cache_memory_bytes=1,
    )
    for name in range(4):
        core.add(str(name), tiny.completion(10 + name, "plain"))
    while core.live:
        core.step()
    gauges = core.gauges()
    assert total(gauges, "preemptions_total") > 0 and total(gauges, "prompt_tokens_cached_total") > 0
