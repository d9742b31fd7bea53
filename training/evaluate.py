"""Measures the demo pair on held-out conversations, through the engine and the format that serve it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.events import fold
from dovetail.formats.base import Strict
from dovetail.grammar.matcher import compile
from dovetail.tokens import tokenizer as load_tokenizer
from training.corpus import Sample, sample
from training.data import FORMAT, HELD_OUT


class Figures(msgspec.Struct):
    """What was measured. Shares are of the calls asked for; `invalid` were cut off, or no tool takes them."""

    conversations: int = 0
    calls: int = 0
    right_tool: int = 0
    right_arguments: int = 0
    invalid: int = 0
    answers: int = 0  # turns without calls, and whether they made none
    right_answers: int = 0
    exact: int = 0  # turns whose calls are those asked for, all of them and no more
    drafting_steps: int = 0
    accepted: int = 0

    def summary(self) -> dict[str, Any]:
        return {
            "conversations": self.conversations,
            "calls": self.calls,
            "right tool": round(self.right_tool / max(self.calls, 1), 3),
            "right tool and arguments": round(self.right_arguments / max(self.calls, 1), 3),
            "turns with exactly the calls asked for": round(self.exact / self.conversations, 3),
            "calls that no tool takes, or cut off": self.invalid,
            "no call where none was asked for": round(self.right_answers / max(self.answers, 1), 3),
            "acceptance length": round(1 + self.accepted / max(self.drafting_steps, 1), 3),
        }


def evaluate(
    checkpoints: Path, *, conversations: int, strict: Strict, draft_tokens: int = 3, temperature: float = 0.0
) -> Figures:
    """Let the pair in `checkpoints` say the first assistant turn of held-out conversations."""
    tokenizer = load_tokenizer(checkpoints / "target")
    core = LLMCore.load(
        checkpoints / "target",
        checkpoints / "drafter" if draft_tokens else None,
        tokenizer,
        EngineSettings(draft_tokens=draft_tokens),
    )
    figures = Figures(conversations=conversations)
    samples = [sample(seed) for seed in range(HELD_OUT, HELD_OUT + conversations)]
    ids: dict[str, list[int]] = {}
    for number, s in enumerate(samples):
        grammar = FORMAT.grammar(s.tools, strict=strict, thinking=s.thinking)
        completion = Completion(
            prompt=tuple(FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(tokenizer)),
            max_tokens=256,
            sampling=Sampling(temperature=temperature, seed=number),
            constraint=compile(grammar, tokenizer, core.info.eos_ids) if grammar else None,
        )
        ids[str(number)] = []
        core.add(str(number), completion)
    while core.live:
        for request_id, batch in core.step():
            if not isinstance(batch, TokenBatch):
                raise batch
            ids[request_id] += batch.ids
            figures.drafting_steps += batch.drafted > 0
            figures.accepted += batch.accepted
    for number, s in enumerate(samples):
        reader = FORMAT.reader(s.tools, thinking=s.thinking, tokenizer=tokenizer)
        _score(figures, s, fold([*reader.feed("", ids[str(number)]), *reader.finish()]))
    return figures


def _score(figures: Figures, s: Sample, message: Any) -> None:
    wanted = s.answer_at(s.turn).calls
    if not wanted:
        figures.answers += 1
        figures.right_answers += not message.calls
    figures.calls += len(wanted)
    figures.invalid += sum(d.kind in ("unknown_name", "invalid_arguments", "truncated_call") for d in message.defects)
    matched = 0
    for want, got in itertools.zip_longest(wanted, message.calls[: len(wanted)]):
        if got is None or got.name != want.name:
            continue
        figures.right_tool += 1
        right = _same_json(got.arguments, want.arguments)
        figures.right_arguments += right
        matched += right
    figures.exact += matched == len(wanted) == len(message.calls)


def _same_json(a: str, b: str) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False
