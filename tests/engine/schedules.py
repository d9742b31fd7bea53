"""Random schedules, and what every request of them must say: the ids of the naive single-request loop.

Random are: the target's kind, the drafter, K for each request and step (by the request's own, and by a gate that turns
drafting off and on), how many run together, the size of the cache
(so that sequences are preempted), the size of a step (so that prompts are computed in parts), what prompts have in
common, whether it is found, who comes when, who is cancelled, constraints, stop strings, penalties, seeds.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.lookup import Lookup
from dovetail.gate import Limits
from tests.engine.checkpoints import (
    LATENT,
    MLA_DRAFTER,
    ByteTokenizer,
    load_core,
    write_drafter,
    write_llama,
    write_mtp_target,
    write_qwen3,
    write_target,
)
from tests.engine.constraints import Automaton
from tests.engine.drafters import Oracle, use
from tests.engine.gates import fickle
from tests.engine.loop import continuation

TOKENIZER = ByteTokenizer()
EOS = {1}
# Prompts with much in common: every one begins with a part of one long text.
TEXT = [(i * 31 + i * i * 7) % 95 + 2 for i in range(120)]
PROMPTS = [tuple(TEXT[:length] + tail) for length in (0, 3, 15, 16, 17, 40, 64, 100) for tail in ([5], [9, 9, 8])]
WANTED = ("plain", "penalised", "stopped", "constrained")


class Checkpoints:
    """Tiny checkpoints, and what the naive loop says of every prompt on them, computed once each."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.targets = {
            "heads": write_mtp_target(root / "heads"),
            "latent": write_target(root / "latent", **LATENT),
            "llama": write_llama(root / "llama"),
            "qwen3": write_qwen3(root / "qwen3"),
        }
        self.drafters: dict[str, Path | str | None] = {
            "eagle3": write_drafter(root / "eagle3"),
            "eagle3, its own words": write_drafter(root / "small", draft_vocab_size=41),
            "eagle3, mla": write_drafter(root / "mla", base=MLA_DRAFTER),
            "parallel": write_drafter(root / "parallel", speculators_model_type="peagle", mask_token_id=96),
            "draft model": write_llama(root / "draft", num_hidden_layers=1),
            "mtp": "mtp",
            "none": None,
        }
        self._models = {
            name: load_core(path, max_batch=1, **settings).models.target for name, path in self.targets.items()
        }
        self.truth = functools.cache(self._truth)

    def completion(self, prompt: int, kind: str, **changes: object) -> Completion:
        sampling = Sampling(temperature=0)
        if kind == "penalised":
            sampling = Sampling(temperature=0, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.3)
        constraint = Automaton.sample(prompt) if kind == "constrained" else None
        # Letters are frequent enough in random output that most of these end somewhere in the middle.
        stop = ("A", "Bc", "zz") if kind == "stopped" else ()
        return Completion(PROMPTS[prompt], 20, sampling=sampling, constraint=constraint, stop=stop, **changes)  # type: ignore[arg-type]

    def _truth(self, target: str, prompt: int, kind: str) -> list[int]:
        return continuation(self._models[target], TOKENIZER, self.completion(prompt, kind), EOS)


def schedule(
    tiny: Checkpoints, seed: int, overlap: bool | None, disturb: Callable[[LLMCore], None] = lambda core: None
) -> None:
    """One random schedule, in a core that `disturb` was given first."""
    rng = random.Random(seed)
    target = rng.choice(sorted(tiny.targets))
    drafter = rng.choice([*sorted(tiny.drafters), "oracle", "lookup"])
    if drafter == "mtp":
        target = "heads"
    wanted = {f"r{i}": (rng.randrange(len(PROMPTS)), rng.choice(WANTED)) for i in range(rng.randint(1, 7))}
    k = rng.randint(1, 5)
    core = load_core(
        tiny.targets[target],
        tiny.drafters.get(drafter, tiny.drafters["eagle3"]),
        draft_tokens=k,
        max_batch=rng.randint(1, 4),
        context=rng.choice((128, 160)),
        kv_cache_memory_bytes=rng.choice((1, 300_000, 1 << 30)),
        max_batched_tokens=rng.choice((1, 5, 16, 33, 512)),
        prefix_caching=rng.random() < 0.7,
        async_scheduling=overlap,
        **tiny.settings,
    )
    if seed % 2:  # K changes from step to step, to none and back, within limits
        fickle(core, seed, Limits(random.Random(seed).choice((None, 30, 90)), random.Random(~seed).choice((None, 2))))
    disturb(core)
    truth = {name: tiny.truth(target, *what) for name, what in wanted.items()}
    if drafter == "oracle":
        use(core, Oracle(truth, wrong=rng.choice((0, 0.2)), seed=seed))
    if drafter == "lookup":
        use(core, Forced(Lookup()))
    elif rng.random() < 0.5:
        use(core, Forced(core.models.drafter))
    out: dict[str, list[int]] = {}
    pending, cancelled = list(wanted), set()
    for _ in range(5_000):
        if not (pending or core.live):
            break
        if pending and rng.random() < 0.5:
            name = pending.pop()
            out[name] = []
            logprobs = rng.choice((None, 0, 2))
            draft_tokens = rng.choice((None, rng.randint(0, k)))
            core.add(name, tiny.completion(*wanted[name], draft_tokens=draft_tokens, logprobs=logprobs))
        if out and rng.random() < 0.05:
            name = rng.choice(sorted(out))
            core.cancel(name)
            cancelled.add(name)
        for request in core._scheduler.running:  # K changes from step to step
            if request.draft_tokens and rng.random() < 0.3:
                request.draft_tokens = rng.randint(1, k)
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch) and name not in cancelled
            out[name] += outcome.ids
            assert len(outcome.logprobs) in (0, len(outcome.ids)) and outcome.accepted <= outcome.drafted <= k
        core.check_integrity()
    assert not core.live, "the schedule does not end"
    for name, ids in out.items():
        assert ids == (truth[name][: len(ids)] if name in cancelled else truth[name]), (name, wanted[name])
    gauges = core.gauges()
    assert gauges["free_blocks"] == gauges["total_blocks"]
