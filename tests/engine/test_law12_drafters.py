"""Law 12 for every drafter with weights: greedy ids are those without drafting, whatever K, batch and cache are."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.completion import Completion, Sampling
from tests.engine.checkpoints import load_core, run
from tests.engine.constraints import Automaton
from tests.engine.test_drafts import CASES, made

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)
PROMPTS = {"a": (2, 3, 4), "b": tuple(range(5, 60)), "c": (9,), "d": (*range(5, 40), 80, 7, 7, 60, 3)}
# Room for all, and prompts at once; or so little that the latest are preempted again and again, and prompts in parts.
ROOMY = {"max_batch": 3}
TIGHT = {"max_batch": 3, "context": 96, "kv_cache_memory_bytes": 1, "max_batched_tokens": 20}


def completions() -> dict[str, Completion]:
    return {
        name: Completion(prompt, 30, sampling=GREEDY, constraint=Automaton.sample(1) if name == "c" else None)
        for name, prompt in PROMPTS.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_drafting_changes_nothing(case: str, tmp_path: Path) -> None:
    target, drafter = made(case, tmp_path)
    plain = load_core(target, max_batch=1)
    truth: dict[str, list[int]] = {}
    for name, completion in completions().items():
        truth |= run(plain, {name: completion})
    for k in range(1, 6):
        room = TIGHT if k % 2 else ROOMY
        core = load_core(target, drafter, draft_tokens=k, **room)  # type: ignore[arg-type]
        assert run(core, completions(), {3: "b", 6: "d"}) == truth
        assert run(core, completions()) == truth
        assert core.counters().drafted > 20 and core.gauges()["prompt_tokens_cached_total"] > 0
