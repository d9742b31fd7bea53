"""Trains the EAGLE-3 drafter on the target's hidden states: several chained steps at once, so that it learns to live
with its own features (the paper's training-time test), each against the target's own distribution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.tokens import Tokenizer
from dovetail.tokens import tokenizer as load_tokenizer
from training.corpus import sample
from training.data import batches, encode
from training.model import Drafter, DrafterShape, Target, TargetShape
from training.train_target import Schedule

STEPS = 4
_FIRST_SEED = 500_000_000  # conversations that the target has not seen


def draft_vocabulary(tokenizer: Tokenizer, size: int) -> list[int]:
    """The `size` tokens that answers are most often made of, in id order."""
    counts: Counter[int] = Counter()
    for seed in range(_FIRST_SEED - 4000, _FIRST_SEED):
        ids, weights = encode(sample(seed), tokenizer)
        counts.update(token for token, weight in zip(ids, weights, strict=True) if weight == 1.0)
    chosen = [token for token, _ in counts.most_common(size)]
    chosen += [token for token in range(tokenizer.vocab_size) if token not in counts][: size - len(chosen)]
    return sorted(chosen)


def train(
    tokenizer_path: Path,
    run: Path,
    minutes: float,
    tokens: int = 6144,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Train for `minutes` on `run`/target.pt and write `run`/drafter.pt: a state dict with its d2t and t2d maps."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(tokenizer_path)
    target = Target(TargetShape()).to(device).eval()
    target.load_state_dict(torch.load(run / "target.pt", map_location=device))
    shape = DrafterShape()
    drafter = Drafter(shape).to(device).train()
    vocabulary = torch.tensor(draft_vocabulary(tokenizer, shape.draft_vocab_size), device=device)
    drafter.lm_head.weight.data.copy_(target.lm_head.weight.data[vocabulary])
    say(f"drafter: {sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters")
    schedule = Schedule(drafter, minutes * 60, matrix_lr=0.01, vector_lr=2e-3)
    averages = [0.0] * STEPS
    for ids, weights in batches(tokenizer, tokens, seed=_FIRST_SEED):
        losses, hits = _losses(target, drafter, ids.to(device), weights.to(device), vocabulary)
        torch.stack(losses).mean().backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        schedule.step()
        averages = [0.9 * a + 0.1 * h for a, h in zip(averages, hits, strict=True)]
        if schedule.steps % 20 == 0:
            say(f"{schedule.progress:6.1%}  step {schedule.steps}  agreement {' '.join(f'{a:.3f}' for a in averages)}")
        if schedule.steps % 200 == 0 or schedule.progress >= 1:
            _save(drafter, vocabulary, target.s.vocab_size, run, schedule, averages)
        if schedule.progress >= 1:
            return


def _losses(
    target: Target, drafter: Drafter, ids: Tensor, weights: Tensor, vocabulary: Tensor
) -> tuple[list[Tensor], list[float]]:
    """Cross-entropy of each chained step against the target's distribution, and how often both pick the same token."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        with torch.no_grad():
            hidden, aux = target(ids, drafter.s.aux_layers)
            embeddings = target.model.embed_tokens(ids)
        steps = drafter(embeddings, aux, STEPS)
        losses, hits = [], []
        for j, logits in enumerate(steps):
            # Slot t of step j speaks of token t+2+j, whose distribution the target gives at slot t+1+j.
            spoken = weights[:, 2 + j :] == 1.0
            with torch.no_grad():
                wanted = target.lm_head(hidden[:, 1 + j : -1][spoken]).float()
            drafted = logits[:, : -2 - j][spoken].float()
            losses.append(F.cross_entropy(drafted, wanted[:, vocabulary].softmax(-1)))
            hits.append((vocabulary[drafted.argmax(-1)] == wanted.argmax(-1)).float().mean().item())
    return losses, hits


def _save(
    drafter: Drafter, vocabulary: Tensor, vocab_size: int, run: Path, schedule: Schedule, agreement: list[float]
) -> None:
    state = drafter.state_dict()
    state["d2t"] = vocabulary - torch.arange(len(vocabulary), device=vocabulary.device)
    state["t2d"] = torch.zeros(vocab_size, dtype=torch.bool, device=vocabulary.device)
    state["t2d"][vocabulary] = True
    torch.save(state, run / "drafter.pt")
    figures = {"minutes": schedule.seconds / 60, "agreement": [round(a, 3) for a in agreement]}
    (run / "drafter.json").write_text(json.dumps(figures))
