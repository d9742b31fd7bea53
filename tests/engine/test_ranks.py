"""Ranks compute what one rank computes: collectives, local argmax, merged attention, whole models."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.config import target_config
from dovetail.engine.parallel.group import Group
from dovetail.engine.parallel.sizes import BLOCK_SIZE, Sizes, indivisible
from dovetail.engine.parallel.split import Split
from dovetail.engine.settings import FP8, CacheDType
from dovetail.engine.weights import inspect_target, load_tensors
from tests.engine import rank_laws
from tests.engine.checkpoints import LATENT, LLAMA, QWEN3, TARGET, described, write_target
from tests.engine.prove_ranks import LAYOUTS, checkpoints, schedule_on
from tests.engine.ranks import processes, threads
from tests.engine.schedules import Checkpoints
from tests.examples import examples

DIVISIBLE: dict[str, Any] = {"vocab_size": 100}
DENSE = DIVISIBLE | {"num_attention_heads": 8, "num_key_value_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "latent": TARGET | DIVISIBLE | LATENT,
    "one layer": TARGET | DIVISIBLE | LATENT | {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    "heads": TARGET | DIVISIBLE | {"q_lora_rank": None, "n_shared_experts": 2},
    "many experts": TARGET | DIVISIBLE | LATENT | {"n_routed_experts": 24, "tie_word_embeddings": True},
    "llama": LLAMA | DENSE | {"attention_bias": True},
    "qwen3": QWEN3 | DENSE | {"tie_word_embeddings": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_target(tmp_path_factory.mktemp("target"), base=config) for name, config in MODELS.items()}


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> Any:
    """The logits of a model on one rank."""

    @functools.cache
    def of(name: str, kind: CacheDType = "auto") -> torch.Tensor:
        with torch.inference_mode():
            return rank_laws.logits(None, folders[name], Sizes(), kind)

    return of


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size: int) -> None:
    threads(size, rank_laws.collectives)
    threads(size, rank_laws.nothing_seen)


@given(seed=st.integers(0, 1000), size=st.sampled_from((2, 4)), rows=st.integers(1, 4))
@examples(8)
def test_local_argmax_is_argmax_with_its_ties(seed: int, size: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-2, 3, (rows, 12), generator=generator).float()
    for special in (torch.inf, -torch.inf, torch.nan):
        numbers[torch.rand(rows, 12, generator=generator) < 0.05] = special
    by_rank = threads(size, lambda group: rank_laws.best(group, numbers))
    assert all(each == by_rank[0] for each in by_rank)


@pytest.mark.slow
def test_ids_beyond_two_to_the_24_are_exact() -> None:
    wide = (1 << 24) + 3

    def work(group: Group) -> list[int]:
        row = torch.zeros(1, wide)
        row[0, -1] = group.rank
        return group.best(row).tolist()  # type: ignore[no-any-return]

    assert threads(2, work) == [[2 * wide - 1]] * 2


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from((2, 4)),
    interleave=st.sampled_from((1, 4, 16)),
    rows=st.integers(4, 70),
    tokens=st.integers(1, 4),
)
@examples(8)
def test_merged_parts_are_the_whole(seed: int, size: int, interleave: int, rows: int, tokens: int) -> None:
    threads(size, lambda group: rank_laws.merged(group, seed, interleave, rows, tokens))


@given(ranks=st.sampled_from((1, 2, 4, 8)), interleave=st.sampled_from((1, 2, 4, 8, 16)), blocks=st.integers(1, 4))
@examples(16)
def test_every_position_has_one_owner_and_every_rank_its_share(ranks: int, interleave: int, blocks: int) -> None:
    """Rows of a rank are BLOCK_SIZE a block, none of them twice, and ascend as positions do."""
    size = BLOCK_SIZE * ranks
    positions = torch.arange(blocks * size)
    rows = positions + 3 * size  # the blocks from 3 on
    owned = torch.zeros(len(rows), dtype=torch.int64)
    for rank in range(ranks):
        split = Split(rank, ranks, interleave)
        own = split.stores(rows)
        assert torch.equal(own, positions // interleave % ranks == rank)
        first = 3 * BLOCK_SIZE
        assert torch.equal(split.local(rows[own]), torch.arange(first, first + blocks * BLOCK_SIZE))
        counted = torch.cat((torch.zeros(1, dtype=torch.int64), own.cumsum(0)))
        assert torch.equal(split.count(torch.arange(len(rows) + 1)), counted)
        owned += own
    assert owned.eq(1).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [("latent", 2), ("llama", 4)]
    + [pytest.param(name, size, marks=pytest.mark.slow) for name in MODELS for size in (2, 4)],
)
def test_divided_models_have_the_same_logits(name: str, size: int, folders: dict[str, Path], alone: Any) -> None:
    by_rank = threads(size, lambda group: rank_laws.logits(group, folders[name], Sizes(size)))
    for each in by_rank:
        assert torch.equal(each, by_rank[0])
        close(each, alone(name))


@pytest.mark.parametrize(
    ("kind", "size", "interleave"),
    [("auto", 4, 1), ("fp8_ds_mla", 2, 16)]
    + [
        pytest.param(kind, size, interleave, marks=pytest.mark.slow)
        for kind in ("auto", *FP8)
        for size, interleave in ((2, 1), (4, 1), (2, 16), (4, 4))
    ],
)
def test_a_context_split_over_ranks(
    kind: CacheDType, size: int, interleave: int, folders: dict[str, Path], alone: Any
) -> None:
    sizes = Sizes(size, size, interleave)
    # After a layer, sums over ranks differ in their last bits, so a number may be rounded to the other one of two FP8
    # values. Hence what is exact with FP8 is one layer.
    for name in ("latent", "one layer"):
        by_rank = threads(size, functools.partial(context_logits, folders[name], sizes, kind))
        for each in by_rank:
            assert torch.equal(each, by_rank[0])
            close(each, alone(name, kind), 1e-5 if kind == "auto" or name == "one layer" else 1e-3)


def context_logits(folder: Path, sizes: Sizes, kind: CacheDType, group: Group) -> torch.Tensor:
    return rank_laws.logits(group, folder, sizes, kind)


def close(actual: torch.Tensor, expected: torch.Tensor, error: float = 1e-5) -> None:
    """Within `error` of the largest logit, and the same greedy tokens."""
    assert (actual - expected).abs().max() <= error * expected.abs().max()
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_processes(size: int, folders: dict[str, Path], alone: Any) -> None:
    """The same over gloo, all of it in one start of the processes."""
    for by_case in processes(size, _everything, folders, size):
        for (name, kind), logits in by_case.items():
            close(logits, alone(name, kind))


def _everything(group: Group, folders: dict[str, Path], size: int) -> dict[tuple[str, CacheDType], torch.Tensor]:
    rank_laws.collectives(group)
    rank_laws.nothing_seen(group)
    rank_laws.best(group, torch.tensor([[0.0, 1, 1, 0], [2, 2, 2, 2], [-3, -2, -1, -1]]))
    rank_laws.merged(group, 1, 4, 41, 3)
    by_case: dict[tuple[str, CacheDType], torch.Tensor] = {
        (name, "auto"): rank_laws.logits(group, folder, Sizes(size)) for name, folder in folders.items()
    }
    kinds: tuple[CacheDType, ...] = ("auto", *FP8)
    for kind, interleave in zip(kinds, (1, 16, 4), strict=True):
        sizes = Sizes(size, size, interleave)
        by_case["one layer", kind] = rank_laws.logits(group, folders["one layer"], sizes, kind)
    return {key: logits.clone() for key, logits in by_case.items()}


def test_each_rank_reads_its_own_part_only(folders: dict[str, Path]) -> None:
    """The parts of all ranks are the tensor; the bytes that are counted are those that were read."""
    for folder in folders.values():
        checkpoint = inspect_target(folder)
        names = list(checkpoint.config.expected_tensors())
        whole = load_tensors(checkpoint.tensors, names)
        read: list[tuple[int, int]] = []

        def note(done: int, total: int, read: list[tuple[int, int]] = read) -> None:
            read.append((done, total))

        parts = [load_tensors(checkpoint.tensors, names, note, rank=rank, ranks=4) for rank in range(4)]
        divided = 0
        for name in names:
            own = [weights[name] for weights in parts]
            if own[0].shape == whole[name].shape:
                assert all(torch.equal(each, whole[name]) for each in own)
            else:
                axis = 0 if own[0].shape[0] < whole[name].shape[0] else 1
                assert torch.equal(torch.cat(own, axis), whole[name])
                divided += whole[name].nbytes
        total = sum(whole[name].nbytes for name in names)
        assert read[-1] == (total - divided + divided // 4,) * 2 and divided > total / 2


@pytest.mark.parametrize(
    ("config", "sizes", "reason"),
    [
        (TARGET | DIVISIBLE, Sizes(8), "8 ranks cannot divide 4 attention heads"),
        (TARGET, Sizes(2), "2 ranks cannot divide 97 tokens in its vocabulary"),
        (TARGET | DIVISIBLE | {"intermediate_size": 66}, Sizes(4), "4 ranks cannot divide 66 columns in an MLP"),
        (TARGET | DIVISIBLE | {"moe_intermediate_size": 26}, Sizes(4), "4 ranks cannot divide 26 columns in an expert"),
        (LLAMA | DIVISIBLE, Sizes(3), "3 ranks cannot divide 2 key-value heads"),
        (TARGET | DIVISIBLE, Sizes(4, 3), "a context split over 3 ranks needs a multiple of them, and there are 4"),
        (LLAMA | DENSE, Sizes(2, 2), "needs latent attention"),
        (TARGET | DIVISIBLE, Sizes(2, 2, 3), "an interleave of 3 does not divide 16"),
        (TARGET | DIVISIBLE, Sizes(4, 2, 16), None),
        (LLAMA | DENSE, Sizes(4), None),
    ],
)
def test_what_cannot_be_divided(config: dict[str, Any], sizes: Sizes, reason: str | None) -> None:
    refusal = indivisible(target_config(described(config)), sizes)
    assert (refusal is None) if reason is None else (refusal is not None and reason in refusal)


@pytest.fixture(scope="module")
def tiny_on(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tiny checkpoints for one of `LAYOUTS` and one type of cache."""

    @functools.cache
    def of(layout: str, kind: CacheDType) -> Checkpoints:
        return checkpoints(tmp_path_factory.mktemp("tiny"), layout, {"kv_cache_dtype": kind})

    return of


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(4, fuzz=1_000)
@given(seed=st.integers(0, 2**64))
def test_schedules(tiny_on: Any, layout: str, seed: int) -> None:
    """Law 12 on ranks, by messages and rows that processes get. 1,000 of each layout in prove_ranks.py."""
    with pytest.MonkeyPatch.context() as patch:
        schedule_on(tiny_on(layout, "auto"), seed, patch.setattr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FP8)
@examples(4, fuzz=1_000)
@given(seed=st.integers(0, 2**64))
def test_schedules_with_fp8_latents(tiny_on: Any, kind: CacheDType, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        schedule_on(tiny_on("4, context 2 by 16", kind), seed, patch.setattr)
