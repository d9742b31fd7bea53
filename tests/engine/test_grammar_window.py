"""Grammars in windows: masks equal those of one token at a time, for every window and number of accepted drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import dovetail
from dovetail.completion import Completion, Constraint, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.masks import MaskRows
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.settings import LOOKUP
from dovetail.engine.step import Window
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.grammar import matcher
from dovetail.tokens import Tokenizer
from tests.engine.checkpoints import (
    DRAFTER,
    LLAMA,
    MLA_DRAFTER,
    load_core,
    run,
    write_drafter,
    write_mtp_target,
    write_target,
)
from tests.engine.drafters import Nothing, Oracle, use
from tests.engine.loop import continuation
from tests.examples import examples
from tests.grammar.test_matcher import TOOLS
from tests.reading import families

pytestmark = pytest.mark.slow

FMT = dovetail.format("kimi_k25")
#: Reasoning and its end, text, two calls, the end of the turn.
SAID = Message(
    "Só. ",
    "I call",
    (
        Call("functions.get_weather:0", "get_weather", '{"city": "Oslo é", "days": 3, "unit": "c"}'),
        Call("functions.ns.do-it:1", "ns.do-it", "{}"),
    ),
)


def made(fmt: Format, tokenizer: Tokenizer, **options: Any) -> Constraint:
    grammar = fmt.grammar(TOOLS, **options)
    assert grammar is not None
    return matcher.compile(grammar, tokenizer, ends(fmt, tokenizer))


def ends(fmt: Format, tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.control[literal] for literal in fmt.end_of_turn]


def takes(constraint: Constraint, ids: Sequence[int]) -> bool:
    return all(constraint.advance(token) for token in ids)


def mask(constraint: Constraint, vocab_size: int) -> list[bool]:
    """Bit by bit."""
    row = bytearray(4 * -(-vocab_size // 32))
    constraint.fill(memoryview(row))
    return [bool(row[token // 8] >> token % 8 & 1) for token in range(vocab_size)]


class Checked:
    """A constraint in windows, beside others that take one token at a time. `taken` is what stands."""

    def __init__(self, new: Callable[[], Constraint], vocab_size: int, longest: int) -> None:
        self._new = new
        self._constraint = new()
        self._masks = MaskRows(longest + 1, vocab_size)
        self._vocab_size = vocab_size
        self.taken: list[int] = []

    def window(self, drafts: Sequence[int]) -> list[list[bool]]:
        """Enter and fill one, and compare; the masks of the drafts that the grammar takes, and one more."""
        naive = self.fresh()
        expected = [mask(naive, self._vocab_size)]
        for draft in drafts:
            if not naive.advance(draft):
                break
            expected.append(mask(naive, self._vocab_size))
        self._masks.clear()
        entry = self._masks.enter(self._constraint, drafts, 0)
        assert entry.drafts == entry.taken == len(expected) - 1
        self._masks.fill()
        assert entry.rows == len(expected) and entry.error is None
        logits = torch.zeros(len(expected), self._vocab_size)
        self._masks.apply(logits)
        assert logits.isfinite().tolist() == expected
        return expected

    def accept(self, ids: Sequence[int]) -> None:
        """These stand."""
        assert takes(self._constraint, ids)
        self.taken += ids

    def rejected(self, ids: Sequence[int]) -> None:
        """As `accept`, and what may follow is compared; then it is as if it had not been."""
        assert takes(self._constraint, ids)
        naive = self.fresh()
        assert takes(naive, ids)
        assert mask(self._constraint, self._vocab_size) == mask(naive, self._vocab_size)
        self._constraint.rollback(len(ids))

    def fresh(self) -> Constraint:
        naive = self._new()
        assert takes(naive, self.taken)
        return naive


def tokens(allowed: Sequence[bool], expected: bool = True) -> list[int]:
    return [token for token, may in enumerate(allowed) if may is expected]


@pytest.mark.parametrize("longest", [1, 3, 5])
def test_every_window_with_a_rejection_at_every_place(small_tokenizer: Tokenizer, longest: int) -> None:
    """At every place of an answer, its own tokens are drafted, with none or one of them wrong: one that may come and
    one that may not; and verification stops at each of them."""
    ids = FMT.write(SAID, thinking=True).ids(small_tokenizer)
    (eos,) = ends(FMT, small_tokenizer)
    assert ids[-1] == eos and small_tokenizer.control["</think>"] in ids
    rng = random.Random(longest)
    size = small_tokenizer.vocab_size
    checked = Checked(lambda: made(FMT, small_tokenizer, thinking=True), size, longest)
    cut = 0
    for place, token in enumerate(ids):
        right = ids[place : place + longest]
        masks = checked.window(right)
        assert len(masks) == len(right) + 1
        for wrong in range(len(right)):
            for may in (True, False):
                others = [other for other in tokens(masks[wrong], may) if other != right[wrong]]
                if not others:  # it is forced, or anything may come
                    continue
                drafts = [*right[:wrong], rng.choice(others), *right[wrong + 1 :]]
                kept = len(checked.window(drafts)) - 1
                assert kept > wrong if may else kept == wrong
                cut += kept < len(drafts)
        for accepted in range(len(right)):  # of the window without a wrong one, behind the end of the turn nothing
            checked.rejected([*right[:accepted], rng.choice(tokens(masks[accepted]))])
        checked.accept([token])
    assert cut > len(ids) / 2
    assert len(checked.window([eos, 5])) == 1  # what follows the end is not computed


@pytest.mark.parametrize("name", ["kimi_k25", "deepseek_v31", "qwen3", "harmony"])
@given(seed=st.integers(0, 10**9))
@examples(8)
def test_random_windows(name: str, seed: int) -> None:
    """Drafts that wander within the grammar, and sometimes out of it; as many of them stand as chance will have."""
    fmt, tokenizer, rng = dovetail.format(name), families.tokenizer_of(name), random.Random(seed)
    longest, size, over = rng.randint(1, 7), tokenizer.vocab_size, set(ends(fmt, tokenizer))
    options = {"thinking": rng.random() < 0.5, "tool_choice": rng.choice(("auto", "required"))}
    checked = Checked(lambda: made(fmt, tokenizer, **options), size, longest)
    for _ in range(40):
        guide, drafts = checked.fresh(), list[int]()
        while len(drafts) < longest and not over & set(drafts):
            drafts.append(likely(tokenizer, tokens(mask(guide, size)), rng))
            assert guide.advance(drafts[-1])
        if rng.random() < 0.5:
            drafts[rng.randrange(len(drafts))] = rng.randrange(size)
        masks = checked.window(drafts)
        stands = rng.randrange(len(masks))
        new = [*drafts[:stands], likely(tokenizer, tokens(masks[stands]), rng)]
        end = next((i for i, token in enumerate(new) if token in over), None)
        checked.accept(new if end is None else new[: end + 1])
        if end is not None:
            return


def likely(tokenizer: Tokenizer, options: list[int], rng: random.Random) -> int:
    """One of `options` that brings an answer to its end sooner than chance would."""
    controls = [token for token in options if token in tokenizer.control_literals]
    closers = [t for t in options if tokenizer.token_bytes(t) in (b'"', b"}", b"]", b"1", b"e")]
    return rng.choice(rng.choice([pool for pool in (options, controls, closers, closers) if pool]))


# --- through the engine

GREEDY = Sampling(temperature=0)
PROMPTS = {"a": (2, 3, 4), "b": tuple(range(5, 40)), "c": (9,), "d": (11, 80, 7, 7, 60, 3), "e": (30, 31)}
OPTIONS: dict[str, dict[str, Any] | None] = {
    "a": {"thinking": True},
    "b": {"thinking": False, "tool_choice": "required"},
    "c": {"thinking": True, "tool_choice": "required", "parallel_tool_calls": False},
    "d": None,
    "e": {"thinking": False, "strict": "names"},
}
CASES = ["eagle3", "eagle3, mla", "parallel", "draft model", "mtp", "lookup", "forced alone", "oracle", "wrong oracle"]


class World:
    """A target of random weights that likes control tokens and no white space, so that answers have reasoning, calls
    and an end; drafters; and what every request must say: the ids of the naive loop, which asks token by token."""

    def __init__(self, root: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer, size = tokenizer, tokenizer.vocab_size
        self.eos = tokenizer.control["<|im_end|>"]
        self.target = write_mtp_target(root / "target", seed=4, vocab_size=size, eos_token_id=self.eos)
        _bias(self.target, tokenizer)
        layer = {"transformer_layer_config": DRAFTER["transformer_layer_config"] | {"vocab_size": size}}
        fits: dict[str, Any] = {"target": {"vocab_size": size}, "draft_vocab_size": size}
        self.drafters: dict[str, Path | str] = {
            "eagle3": write_drafter(root / "eagle3", **fits, **layer),
            "eagle3, mla": write_drafter(root / "mla", base=MLA_DRAFTER | {"vocab_size": size}, **fits),
            "parallel": write_drafter(
                root / "parallel", **fits, **layer, speculators_model_type="peagle", mask_token_id=size - 1
            ),
            "draft model": write_target(root / "draft", base=LLAMA, vocab_size=size, num_hidden_layers=1),
            "mtp": "mtp",
        }
        model = self.core(None, 0).models.target
        self.truth = {
            name: continuation(model, tokenizer, completion, {self.eos})
            for name, completion in self.completions().items()
        }

    def completions(self) -> dict[str, Completion]:
        return {
            name: Completion(prompt, 60, sampling=GREEDY, constraint=self.constraint(name))
            for name, prompt in PROMPTS.items()
        }

    def constraint(self, name: str) -> Constraint | None:
        options = OPTIONS[name]
        return None if options is None else made(FMT, self.tokenizer, **options)

    def core(self, drafter: Path | str | None, k: int, **options: Any) -> LLMCore:
        return load_core(self.target, drafter, tokenizer=self.tokenizer, draft_tokens=k, max_batch=4, **options)

    def drafting(self, case: str, k: int, **options: Any) -> LLMCore:
        core = self.core(self.drafters.get(case, LOOKUP), k, **options)
        if case == "forced alone":
            use(core, Forced(Nothing()))
        if "oracle" in case:
            use(core, Forced(Oracle(self.truth, wrong=0.3 if "wrong" in case else 0.0, seed=k)))
        return core


def _bias(folder: Path, tokenizer: Tokenizer) -> None:
    weights: dict[str, Tensor] = load_file(folder / "model.safetensors")
    spelled = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    weights["lm_head.weight"][[token for token, text in enumerate(spelled) if text.isspace()]] = 0.0
    weights["lm_head.weight"][[*tokenizer.control.values(), *map(spelled.index, (b'"', b"}"))]] *= 4.0
    save_file(weights, folder / "model.safetensors")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Tokenizer) -> World:
    return World(tmp_path_factory.mktemp("world"), small_tokenizer)


def test_the_schedules_cover_all_cases(world: World) -> None:
    """Answers end, reasoning ends, and there are calls."""
    control = world.tokenizer.control
    assert sum(ids[-1] == world.eos for ids in world.truth.values()) >= 3
    assert sum(control["</think>"] in world.truth[name] for name in "ac") == 2
    assert sum(control["<|tool_call_end|>"] in ids for ids in world.truth.values()) >= 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_law_12_with_grammars(world: World, case: str, overlap: bool) -> None:
    """Greedy ids are those of the naive loop, with every drafter and K, and no draft is computed that the grammar
    refuses."""
    cut = 0
    for k in range(1, 6):
        core = world.drafting(case, k, async_scheduling=overlap)
        collate = core.loop._collate

        def looked_at(windows: Sequence[Window], collate: Any = collate) -> ForwardBatch:
            nonlocal cut
            for window in windows:
                constraint = world.constraint(window.request.id)
                if constraint is None or window.logit_row is None:
                    continue
                assert takes(constraint, [*window.request.tokens[window.request.prompt_length :], *window.drafts])
                cut += window.proposed - len(window.drafts)
            batch: ForwardBatch = collate(windows)
            return batch

        core.loop._collate = looked_at  # type: ignore[method-assign]
        assert run(core, world.completions(), {2: "c", 5: "e"}) == world.truth
        counters = core.counters()
        assert counters.forced >= counters.forced_accepted > 0
        assert case != "forced alone" or counters.drafted == counters.forced
    assert cut > 0 or case in ("lookup", "forced alone", "oracle")


def test_ends_fall_inside_windows(world: World) -> None:
    """The end of the turn, and of the reasoning, are among drafts that stood, with others behind the latter."""
    end_of_reasoning = world.tokenizer.control["</think>"]
    ended = reasoned = 0
    for seed in range(6):
        core = use(world.core(LOOKUP, 4), Forced(Oracle(world.truth, wrong=0.0, seed=seed)))
        verified: list[list[int]] = []
        collate = core.loop._collate

        def noted(windows: Sequence[Window], collate: Any = collate, verified: Any = verified) -> ForwardBatch:
            verified += [window.drafts for window in windows]
            batch: ForwardBatch = collate(windows)
            return batch

        core.loop._collate = noted  # type: ignore[method-assign]
        assert run(core, world.completions()) == world.truth
        ended += sum(world.eos in drafts for drafts in verified)
        reasoned += sum(end_of_reasoning in drafts[:-1] for drafts in verified)
    assert ended > 0 and reasoned > 0
