"""The bundled demo pair: its answers equal the slow reference's, speculation changes nothing, and it is good enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dovetail
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.grammar.matcher import compile
from dovetail.tokens import Tokenizer
from training.corpus import sample
from training.data import FORMAT, HELD_OUT
from training.evaluate import evaluate
from training.model import Drafter, DrafterShape, Target, TargetShape

pytestmark = pytest.mark.slow

DEMO = Path(dovetail.__file__).parent / "data" / "demo"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return dovetail.tokenizer(DEMO / "target")


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    samples = map(sample, range(HELD_OUT, HELD_OUT + 6))
    return [tuple(FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(tokenizer)) for s in samples]


def core(tokenizer: Tokenizer, draft_tokens: int, **options: Any) -> LLMCore:
    return LLMCore.load(
        DEMO / "target", DEMO / "drafter", tokenizer, EngineSettings(draft_tokens=draft_tokens, threads=1, **options)
    )


def run(engine: LLMCore, completions: list[Completion]) -> list[list[int]]:
    ids: list[list[int]] = [[] for _ in completions]
    for number, completion in enumerate(completions):
        engine.add(str(number), completion)
    while engine.live:
        for request_id, outcome in engine.step():
            assert isinstance(outcome, TokenBatch)
            ids[int(request_id)] += outcome.ids
    engine.check_integrity()
    return ids


def reference() -> tuple[Target, Drafter, torch.Tensor]:
    target, drafter = Target(TargetShape()).eval(), Drafter(DrafterShape()).eval()
    target.load_state_dict({k: v.float() for k, v in load_file(DEMO / "target" / "model.safetensors").items()})
    weights = load_file(DEMO / "drafter" / "model.safetensors")
    d2t = weights.pop("d2t")
    weights.pop("t2d")
    drafter.load_state_dict({k: v.float() for k, v in weights.items()})
    return target, drafter, d2t + torch.arange(len(d2t))


def test_transformers_gives_the_same_logits(prompts: list[tuple[int, ...]]) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    target, _, _ = reference()
    with torch.inference_mode():
        for prompt in prompts[:3]:
            ids = torch.tensor([prompt])
            ours = target.lm_head(target(ids)[0])
            assert (theirs(ids).logits - ours).abs().max() < 1e-3


def test_greedy_is_the_references_greedy(tokenizer: Tokenizer, prompts: list[tuple[int, ...]]) -> None:
    """One token at a time over the whole sequence again: the slowest way there is."""
    target, _, _ = reference()
    answers = run(core(tokenizer, 3), [Completion(p, 24, Sampling(temperature=0.0)) for p in prompts[:3]])
    for prompt, ids in zip(prompts, answers, strict=False):
        sequence = list(prompt)
        with torch.inference_mode():
            for token in ids:
                hidden, _ = target(torch.tensor([sequence]))
                assert int(target.lm_head(hidden[0, -1]).argmax()) == token
                sequence.append(token)


def test_drafts_are_the_references_drafts(tokenizer: Tokenizer, prompts: list[tuple[int, ...]]) -> None:
    """What training's drafter, which sees whole sequences, scores highest at the slot that the engine drafts from."""
    target, drafter, vocabulary = reference()
    engine = core(tokenizer, 3)
    propose = engine.scheduler.drafter.propose  # type: ignore[union-attr]
    compared = 0

    def checked(requests: Any, rooms: Any) -> Any:
        nonlocal compared
        drafts = propose(requests, rooms)
        for request, draft in zip(requests, drafts, strict=True):
            ids = torch.tensor([request.tokens + draft.tokens])
            with torch.inference_mode():
                _, aux = target(ids, drafter.s.aux_layers)
                steps = drafter(target.model.embed_tokens(ids), torch.cat(aux, -1), len(draft.tokens))
            slot = len(request.tokens) - 2
            assert draft.tokens == [int(vocabulary[logits[0, slot].argmax()]) for logits in steps]
            compared += 1
        return drafts

    engine.scheduler.drafter.propose = checked  # type: ignore[union-attr,method-assign]
    run(engine, [Completion(prompts[0], 40, Sampling(temperature=0.0))])
    assert compared > 5


@pytest.mark.parametrize("draft_tokens", [1, 2, 3, 4, 5])
def test_law_12_speculation_changes_no_text(
    tokenizer: Tokenizer, prompts: list[tuple[int, ...]], draft_tokens: int
) -> None:
    """Batches with and without constraint, requests with their own cap, more requests than places."""
    engine = core(tokenizer, draft_tokens, max_batch=4)

    def completions(cap: int | None) -> list[Completion]:
        made = []
        for number, prompt in enumerate(prompts):
            s = sample(HELD_OUT + number)
            grammar = FORMAT.grammar(s.tools, thinking=s.thinking) if number % 2 else None
            constraint = compile(grammar, tokenizer, engine.info.eos_ids) if grammar else None
            own = cap if cap is not None else (None, 1, draft_tokens)[number % 3]
            made.append(Completion(prompt, 60, Sampling(temperature=0.0), constraint=constraint, draft_tokens=own))
        return made

    assert run(engine, completions(None)) == run(engine, completions(0))
    assert engine.counters().accepted > 0


def test_it_is_good_enough() -> None:
    """The bar it was made for, on conversations that no training run sees."""
    figures = evaluate(DEMO, conversations=60, strict="schema")
    assert figures.right_tool >= 0.8 * figures.calls
    assert figures.right_arguments >= 0.6 * figures.calls
    assert 1 + figures.accepted / figures.drafting_steps >= 2.0
