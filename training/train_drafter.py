"""Trains an EAGLE-3 drafter on its target's hidden states: several chained steps at once, so that it learns to live
with its own features (the paper's training-time test), each against the target's own distribution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

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


class Features(NamedTuple):
    """What a drafter learns from in a batch of sequences.

    `embeddings`: [batch, tokens, hidden] of the tokens. `aux`: the target's hidden states that the drafter reads,
    joined. `hidden`: the target's last hidden states, after its norm. `spoken`: [batch, tokens], true where the token
    belongs to an answer.
    """

    embeddings: Tensor
    aux: Tensor
    hidden: Tensor
    spoken: Tensor


def most_frequent(answers: Iterable[Sequence[int]], size: int, vocab_size: int) -> Tensor:
    """The `size` tokens that answers are most often made of, in id order; others in id order if there are too few."""
    counts = Counter(token for answer in answers for token in answer)
    chosen = [token for token, _ in counts.most_common(size)]
    chosen += [token for token in range(vocab_size) if token not in counts][: size - len(chosen)]
    return torch.tensor(sorted(chosen))


def fit(
    drafter: Drafter,
    head: Tensor,
    features: Iterable[Features],
    schedule: Schedule,
    after_step: Callable[[list[float]], None],
) -> None:
    """Train until the schedule's time is over. `head`: the target's output weights of the drafter's vocabulary.

    `after_step` gets how often drafter and target pick the same token of that vocabulary, at each step of a chain:
    a moving average.
    """
    averages = [0.0] * STEPS
    for batch in features:
        losses, hits = _losses(drafter, head, batch)
        torch.stack(losses).mean().backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        schedule.step()
        averages = [0.9 * a + 0.1 * h for a, h in zip(averages, hits, strict=True)]
        after_step(averages)
        if schedule.progress >= 1:
            return


def _losses(drafter: Drafter, head: Tensor, batch: Features) -> tuple[list[Tensor], list[float]]:
    """Cross-entropy of each chained step against the target's distribution, and how often both pick the same token."""
    losses, hits = [], []
    with torch.autocast(head.device.type, dtype=torch.bfloat16):
        for j, logits in enumerate(drafter(batch.embeddings, batch.aux, STEPS)):
            # Slot t of step j speaks of token t+2+j, whose distribution the target gives at slot t+1+j.
            spoken = batch.spoken[:, 2 + j :]
            with torch.no_grad():
                wanted = F.linear(batch.hidden[:, 1 + j : -1][spoken], head).float()
            drafted = logits[:, : -2 - j][spoken].float()
            losses.append(F.cross_entropy(drafted, wanted.softmax(-1)))
            hits.append((drafted.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return losses, hits


def state_of(drafter: Drafter, vocabulary: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """The tensors of a drafter's checkpoint, with the maps between its vocabulary and the target's."""
    in_vocabulary = torch.zeros(vocab_size, dtype=torch.bool, device=vocabulary.device)
    in_vocabulary[vocabulary] = True
    own = vocabulary - torch.arange(len(vocabulary), device=vocabulary.device)
    return {**drafter.state_dict(), "d2t": own, "t2d": in_vocabulary}


def train(
    tokenizer_path: Path,
    run: Path,
    minutes: float,
    tokens: int = 6144,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Train the demo's drafter for `minutes` on `run`/target.pt and write `run`/drafter.pt: a checkpoint's tensors."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(tokenizer_path)
    target = Target(TargetShape()).to(device).eval()
    target.load_state_dict(torch.load(run / "target.pt", map_location=device))
    shape = DrafterShape()
    drafter = Drafter(shape).to(device).train()
    before = (encode(sample(seed), tokenizer) for seed in range(_FIRST_SEED - 4000, _FIRST_SEED))
    answers = ([t for t, weight in zip(*one, strict=True) if weight == 1.0] for one in before)
    vocabulary = most_frequent(answers, shape.draft_vocab_size, tokenizer.vocab_size).to(device)
    head = target.lm_head.weight.data[vocabulary]
    drafter.lm_head.weight.data.copy_(head)
    say(f"drafter: {sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters")
    schedule = Schedule(drafter, minutes * 60, matrix_lr=0.01, vector_lr=2e-3)

    def after_step(agreement: list[float]) -> None:
        if schedule.steps % 20 == 0:
            say(f"{schedule.progress:6.1%}  step {schedule.steps}  agreement {' '.join(f'{a:.3f}' for a in agreement)}")
        if schedule.steps % 200 == 0 or schedule.progress >= 1:
            torch.save(state_of(drafter, vocabulary, target.s.vocab_size), run / "drafter.pt")
            figures = {"minutes": minutes, "agreement": [round(a, 3) for a in agreement]}
            (run / "drafter.json").write_text(json.dumps(figures))

    fit(drafter, head, _features(target, shape, tokenizer, tokens, device), schedule, after_step)


def _features(
    target: Target, shape: DrafterShape, tokenizer: Tokenizer, tokens: int, device: str
) -> Iterator[Features]:
    for ids, weights in batches(tokenizer, tokens, seed=_FIRST_SEED):
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            hidden, aux = target(ids.to(device), shape.aux_layers)
            embeddings = target.model.embed_tokens(ids.to(device))
        yield Features(embeddings, torch.cat(aux, -1), hidden, weights.to(device) == 1.0)
