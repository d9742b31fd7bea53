"""Trains the target on the corpus for a given time: Muon on matrices, AdamW on the rest, then a linear cool-down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.tokens import tokenizer as load_tokenizer
from training.data import batches
from training.induction import lay_induction
from training.model import Target, TargetShape

COOL_DOWN = 0.5  # the last part of the run, over which the learning rate falls to zero
BALANCE_RATE = 1e-3


class Schedule:
    """Optimizers whose learning rate follows the clock, so that a run ends on time.

    `state` and `load_state` let a run that was stopped go on, with the time that it had left.
    """

    def __init__(self, module: nn.Module, seconds: float, matrix_lr: float = 0.01, vector_lr: float = 2e-3) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        matrices = [
            p for name, p in named if p.dim() == 2 and not any(k in name for k in ("embed", "lm_head", "gate.weight"))
        ]
        chosen = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in chosen]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.01, adjust_lr_fn="original"),
            torch.optim.AdamW(others, lr=vector_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.peak = [matrix_lr, vector_lr]
        self.seconds = seconds
        self.started = time.monotonic()
        self.steps = 0

    def state(self) -> dict[str, Any]:
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"optimizers": optimizers, "steps": self.steps, "elapsed": time.monotonic() - self.started}

    def load_state(self, state: dict[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps, self.started = state["steps"], time.monotonic() - state["elapsed"]

    @property
    def progress(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def step(self) -> None:
        self.steps += 1
        warm = min(1.0, self.steps / 50)
        factor = warm * min(1.0, max(0.0, (1 - self.progress) / COOL_DOWN))
        for optimizer, peak in zip(self.optimizers, self.peak, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def train(
    tokenizer_path: Path,
    out: Path,
    minutes: float,
    tokens: int = 6144,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Train for `minutes` and write `target.pt` (a state dict) and `target.json` (its figures) into `out`."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(tokenizer_path)
    shape = TargetShape()
    model = Target(shape)
    lay_induction(model, tokenizer)
    model.to(device).train()
    say(f"target: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    schedule = Schedule(model, minutes * 60)
    seen, average = 0, None
    for ids, weights in batches(tokenizer, tokens, seed=0):
        loss = _loss(model, ids.to(device), weights.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        schedule.step()
        for router in model.routers():
            router.balance(BALANCE_RATE)
        seen += ids.numel()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if schedule.steps % 20 == 0:
            rate = seen / (schedule.progress * schedule.seconds)
            say(
                f"{schedule.progress:6.1%}  step {schedule.steps}  loss {average:.4f}  "
                f"{seen / 1e6:.1f} M tokens  {rate:.0f}/s"
            )
        if schedule.steps % 200 == 0 or schedule.progress >= 1:
            _save(model, out, schedule, seen, average)
        if schedule.progress >= 1:
            return


def _loss(model: Target, ids: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        hidden, _ = model(ids[:, :-1])
        wanted, weight = ids[:, 1:].flatten(), weights[:, 1:].flatten()
        rows = weight.nonzero().squeeze(-1)
        logits = model.lm_head(hidden.flatten(0, 1)[rows])
    losses = F.cross_entropy(logits.float(), wanted[rows], reduction="none")
    return (losses * weight[rows]).sum() / weight.sum()


def _save(model: Target, out: Path, schedule: Schedule, seen: int, loss: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "target.pt")
    figures = {"minutes": schedule.seconds / 60, "steps": schedule.steps, "tokens": seen, "loss": round(loss, 4)}
    (out / "target.json").write_text(json.dumps(figures))
