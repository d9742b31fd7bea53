"""What rounding the latents of a KV cache changes: `python -m benchmarks.latents`.

The demo target reads one text of held-out conversations with each type of cache. Its logits at the last 1,000 places
before each length are compared with those of a float32 cache: the error of a logit relative to the logits' deviation,
the KL divergence in nats, and at how many of 1,000 places the most likely token differs (a greedy flip). The demo was
trained on up to 4,096 tokens; longer texts show rounding, not quality. Then the demo pair answers held-out prompts with
each type: how many drafts are accepted, and how many answers are as with float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from benchmarks.tables import Row, show
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.core import LLMCore
from dovetail.engine.models.base import Model, collate
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.settings import CacheDType, EngineSettings
from dovetail.engine.weights import inspect_target, load_tensors
from dovetail.tokens import tokenizer as load_tokenizer
from training.corpus import sample
from training.data import FORMAT, HELD_OUT

DEMO = Path(__file__).parents[1] / "src/dovetail/data/demo"
PLACES = 1000
_CHUNK, _BLOCK = 512, 16


class Change(NamedTuple):
    """How far logits [places, vocabulary] are from the reference's."""

    error: float
    kl: float
    flips: float


def change(actual: Tensor, reference: Tensor) -> Change:
    """`flips` are for 1,000 places."""
    error = (actual - reference).square().mean().sqrt() / reference.std()
    log = reference.log_softmax(-1)
    kl = (log.exp() * (log - actual.log_softmax(-1))).sum(-1).mean()
    flips = (actual.argmax(-1) != reference.argmax(-1)).double().mean() * 1000
    return Change(error.item(), kl.item(), flips.item())


def text(length: int) -> list[int]:
    """The first `length` tokens of held-out conversations, one after the other."""
    tokenizer, ids, seed = load_tokenizer(DEMO / "target"), list[int](), HELD_OUT
    while len(ids) < length:
        conversation = sample(seed)
        ids += FORMAT.render(conversation.messages, conversation.tools, thinking=conversation.thinking).ids(tokenizer)
        seed += 1
    return ids[:length]


def logits(kind: CacheDType, tokens: Sequence[int], lengths: Sequence[int]) -> Iterator[Tensor]:
    """The logits of the last places before each of the ascending `lengths`, read in parts as a server does."""
    model, blocks = _model(kind, len(tokens)), BlockTable(_BLOCK)
    for block in range(-(-len(tokens) // _BLOCK)):
        blocks.append(block)
    hidden: list[Tensor] = []
    wanted = list(lengths)
    with torch.inference_mode():
        for start in range(0, len(tokens), _CHUNK):
            part = list(tokens[start : start + _CHUNK])
            hidden = [torch.cat([*hidden, model.forward(collate([(part, start, blocks)]))[0]])[-PLACES - _CHUNK :]]
            end = start + len(part)
            while wanted and wanted[0] <= end:
                last = len(hidden[0]) - (end - wanted.pop(0))
                yield model.logits(hidden[0][max(0, last - PLACES) : last])


def _model(kind: CacheDType, length: int) -> Model:
    target = inspect_target(DEMO / "target")
    weights = load_tensors(target.tensors, target.config.expected_tensors())
    rows = -(-length // _BLOCK) * _BLOCK
    options = Options(kv_cache_dtype=kind)
    return build_model(target.config, weights, rows=rows, context=rows, dtype=torch.float32, options=options)


def answers(kind: CacheDType, prompts: int, tokens: int) -> tuple[list[list[int]], float]:
    """The demo pair's greedy answers to held-out prompts at 3 drafts a step, and the share of drafts accepted."""
    tokenizer = load_tokenizer(DEMO / "target")
    settings = EngineSettings(draft_tokens=3, max_batch=8, kv_cache_dtype=kind, threads=1)
    core = LLMCore.load(DEMO / "target", DEMO / "drafter", tokenizer, settings)
    out: dict[str, list[int]] = {}
    for seed in range(prompts):
        drawn = sample(HELD_OUT + seed)
        ids = FORMAT.render(drawn.messages[: drawn.turn], drawn.tools, thinking=drawn.thinking).ids(tokenizer)
        out[str(seed)] = []
        core.add(str(seed), Completion(tuple(ids), tokens, sampling=Sampling(temperature=0)))
    while core.live:
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch), outcome
            out[name] += outcome.ids
    counters = core.counters()
    core.close()
    return list(out.values()), counters.accepted / max(counters.drafted, 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latents", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384", help="ascending lengths of text, in tokens")
    parser.add_argument("--prompts", type=int, default=100, help="how many prompts are answered")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lengths = [int(word) for word in arguments.lengths.split(",")]
    kinds = [kind for kind in get_args(CacheDType) if kind not in ("auto", "float32")]
    tokens = text(max(lengths))
    reference = list(logits("float32", tokens, lengths))
    rounding: list[Row] = []
    for kind in kinds:
        for length, actual, expected in zip(lengths, logits(kind, tokens, lengths), reference, strict=True):
            error, kl, flips = change(actual, expected)
            rounding.append([kind, f"{length:,}", f"{error:.2%}", f"{kl:.1e}", f"{flips:.0f}"])
            print(*rounding[-1], file=sys.stderr)  # the longest text takes minutes
    plain, accepted = answers("float32", arguments.prompts, 64)
    drafting: list[Row] = [["float32", f"{accepted:.1%}", f"{len(plain)} of {len(plain)}"]]
    for kind in kinds:
        each, accepted = answers(kind, arguments.prompts, 64)
        same = sum(one == other for one, other in zip(each, plain, strict=True))
        drafting.append([kind, f"{accepted:.1%}", f"{same} of {len(plain)}"])
    sheets = [
        ("Logits", ["cache", "text", "logit error", "KL (nats)", "flips of 1,000"], rounding),
        ("Answers", ["cache", "drafts accepted", "as float32"], drafting),
    ]
    show(sheets, [], as_markdown=arguments.markdown, words={"cache"})


if __name__ == "__main__":
    main()
