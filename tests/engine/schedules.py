"""Random schedules. Every request must give the ids of the naive single-request loop.

Random are: the target's kind, the drafter, K for each request and step (by the request's own, and by a gate that turns
drafting off and on), how many run together, the size of the cache
(so that sequences are preempted), the size of a step (so that prompts are computed in parts), what prompts have in
common, whether it is found, who comes when, who is cancelled, constraints, stop strings, stop tokens, biases,
penalties, seeds.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.completion import Completion, Sampling, TokenBatch, TokenLogprob, total
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.settings import FP8
from dovetail.gate import Limits
from tests.engine.checkpoints import (
    DRAFTER,
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
from tests.engine.drafters import Nothing, Oracle, use
from tests.engine.gates import fickle
from tests.engine.loop import continuation, prompt_logprobs

TOKENIZER = ByteTokenizer()
EOS = {1}
# Prompts with much in common: every one begins with a part of one long text.
TEXT = [(i * 31 + i * i * 7) % 95 + 2 for i in range(120)]
PROMPTS = [tuple(TEXT[:length] + tail) for length in (0, 3, 15, 16, 17, 40, 64, 100) for tail in ([5], [9, 9, 8])]
WANTED = ("plain", "penalised", "stopped", "constrained", "biased", "endless", "constrained and endless")
END = min(EOS)
MAX_TOKENS = 12
# What a schedule can get wrong is in two layers, too: the second reads what the first has made of its cache, and of
# DeepSeek's the first is dense and the second has experts. Each matrix product costs a small model 10 to 300 us.
SMALL: dict[str, Any] = {"num_hidden_layers": 2}
DIVISIBLE: dict[str, Any] = {"vocab_size": 100}
DIVISIBLE_HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4}
FEW_EXPERTS: dict[str, Any] = {"n_routed_experts": 3}
AUX_LAYERS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
MLA_AUX_LAYERS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1]}


class Checkpoints:
    """Tiny checkpoints, and what the naive loop says of every prompt on them, computed once each."""

    def __init__(self, root: Path, settings: dict[str, Any], ranks: dict[str, Any] | None = None) -> None:
        """`ranks`: settings that divide the targets, whose truth is that of one rank."""
        self.settings = settings | (ranks or {})
        vocab = {} if ranks is None else DIVISIBLE
        heads = {} if ranks is None else DIVISIBLE_HEADS
        small = SMALL | vocab
        self.targets = {
            "heads": write_mtp_target(root / "heads", **small, **FEW_EXPERTS),
            "latent": write_target(root / "latent", **LATENT, **small, **FEW_EXPERTS),
            "llama": write_llama(root / "llama", **small, **heads),
            "qwen3": write_qwen3(root / "qwen3", **small, **heads),
        }
        # Only latents can be FP8, or divided by position.
        if settings.get("kv_cache_dtype") in FP8 or "decode_context_parallel_size" in self.settings:
            del self.targets["llama"], self.targets["qwen3"]
        layers = DRAFTER["transformer_layer_config"] | vocab
        base = DRAFTER | {"transformer_layer_config": layers, "draft_vocab_size": layers["vocab_size"]}
        mla = MLA_DRAFTER | {"vocab_size": layers["vocab_size"], "draft_vocab_size": layers["vocab_size"]}
        parallel = AUX_LAYERS | {"speculators_model_type": "peagle", "mask_token_id": 96}
        self.drafters: dict[str, Path | str | None] = {
            "eagle3": write_drafter(root / "eagle3", small, base=base, **AUX_LAYERS),
            "eagle3, its own vocabulary": write_drafter(
                root / "small", small, base=base | {"draft_vocab_size": 41}, **AUX_LAYERS
            ),
            "eagle3, mla": write_drafter(root / "mla", small, base=mla, eagle_config=MLA_AUX_LAYERS),
            "parallel": write_drafter(root / "parallel", small, base=base, **parallel),
            "draft model": write_llama(root / "draft", num_hidden_layers=1, **vocab),
            "mtp": "mtp",
            "none": None,
        }
        self._models = {
            name: load_core(path, max_batch=1, **settings).models.target for name, path in self.targets.items()
        }
        self.truth = functools.cache(self._truth)
        self.scores = functools.cache(self._scores)

    def completion(self, prompt: int, kind: str, **changes: object) -> Completion:
        sampling = Sampling(temperature=0)
        if kind == "penalised":
            sampling = Sampling(temperature=0, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.3)
        if kind == "biased":  # so that the answer ends early unless something prevents it
            sampling = Sampling(
                temperature=0, presence_penalty=0.4, logit_bias={END: 3.0, 40: 2.5, 41: -100.0, 42: 2.0}
            )
        if kind in ("endless", "constrained and endless"):
            sampling = Sampling(temperature=0, logit_bias={END: 100.0, **dict.fromkeys(range(60, 66), 2.0)})
        constraint = None
        if kind == "constrained":
            constraint = Automaton.sample(prompt)
        if kind == "constrained and endless":
            constraint = Automaton.ending(prompt, END, 2 + prompt)
        # Letters are frequent enough in random output that most of these end somewhere in the middle.
        stop = ("A", "Bc", "zz") if kind == "stopped" else ()
        if kind == "biased":
            changes |= {"min_tokens": prompt % 7, "stop_token_ids": (42, 43)}
        changes["ignore_eos"] = "endless" in kind
        return Completion(PROMPTS[prompt], MAX_TOKENS, sampling=sampling, constraint=constraint, stop=stop, **changes)  # type: ignore[arg-type]

    def _truth(self, target: str, prompt: int, kind: str) -> list[int]:
        return continuation(self._models[target], TOKENIZER, self.completion(prompt, kind), EOS)

    def _scores(self, target: str, prompt: int) -> list[list[float]]:
        return prompt_logprobs(self._models[target], PROMPTS[prompt])

    def check_scores(self, target: str, prompt: int, top: int, entries: Sequence[TokenLogprob]) -> None:
        """Check the log probabilities of a prompt, as an engine reports them, against the naive loop's."""
        naive = self.scores(target, prompt)
        assert [entry.token for entry in entries] == list(PROMPTS[prompt][1:])
        for entry, row in zip(entries, naive, strict=True):
            assert entry.logprob == pytest.approx(row[entry.token], abs=2e-3)
            assert [logprob for _, logprob in entry.top] == pytest.approx(sorted(row, reverse=True)[:top], abs=2e-3)
            assert all(logprob == pytest.approx(row[token], abs=2e-3) for token, logprob in entry.top)


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
        max_batched_tokens=rng.choice((1, 5, 5, 16, 16, 33, 33, 512, 512)),
        prefix_caching=rng.random() < 0.7,
        async_scheduling=overlap,
        **tiny.settings,
    )
    if seed % 2:  # K changes from step to step, to none and back, within limits
        fickle(core, seed, Limits(random.Random(seed).choice((None, 30, 90)), random.Random(~seed).choice((None, 2))))
    disturb(core)
    truth = {name: tiny.truth(target, *what) for name, what in wanted.items()}
    if drafter == "oracle":
        use(core, Oracle(truth, rng.choice((0, 0.2)), seed, core.models.pool.block_size))
    if drafter == "lookup":
        use(core, Forced(Lookup()))
    elif rng.random() < 0.5:
        use(core, Forced(core.models.drafter or Nothing()))
    out: dict[str, list[int]] = {}
    # Which prompts are scored, with how many of the likeliest tokens.
    tops = {name: random.Random(seed + i).choice((None, None, 0, 2)) for i, name in enumerate(wanted)}
    scored: dict[str, Sequence[TokenLogprob]] = {}
    pending, cancelled = list(wanted), set()
    for _ in range(5_000):
        if not (pending or core.live):
            break
        if pending and rng.random() < 0.5:
            name = pending.pop()
            out[name] = []
            logprobs = rng.choice((None, 0, 2))
            draft_tokens = rng.choice((None, rng.randint(0, k)))
            changes = {"draft_tokens": draft_tokens, "logprobs": logprobs, "prompt_logprobs": tops[name]}
            core.add(name, tiny.completion(*wanted[name], **changes, gated=rng.random() < 0.7))
        if out and rng.random() < 0.05:
            name = rng.choice(sorted(out))
            core.cancel(name)
            cancelled.add(name)
        for request in core.scheduler.running:  # K changes from step to step
            if request.draft_tokens and rng.random() < 0.3:
                request.draft_tokens = rng.randint(1, k)
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch) and name not in cancelled
            assert not (outcome.prompt_logprobs and out[name]), "a prompt's log probabilities come first"
            scored[name] = outcome.prompt_logprobs or scored.get(name, ())
            out[name] += outcome.ids
            assert len(outcome.logprobs) in (0, len(outcome.ids)) and outcome.accepted <= outcome.drafted <= k
        core.check_integrity()
    assert not core.live, "the schedule does not end"
    for name, ids in out.items():
        assert ids == (truth[name][: len(ids)] if name in cancelled else truth[name]), (name, wanted[name])
    for name, entries in scored.items():
        if tops[name] is None:
            assert not entries
        else:
            tiny.check_scores(target, wanted[name][0], tops[name] or 0, entries)
    core.close()
    gauges = core.gauges()
    assert total(gauges, "free_blocks") == total(gauges, "total_blocks")
    assert not total(gauges, "drafting_failures_total")
