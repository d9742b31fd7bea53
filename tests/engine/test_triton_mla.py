"""The GPU kernel against the oracle: on a GPU if there is one, else by Triton's interpreter (CONTRIBUTING.md).

By the interpreter in float32 and float16, because its products of bfloat16 are wrong (Triton 3.7 to 3.9).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import Phase, given
from hypothesis import strategies as st

from dovetail.engine.attention.latent_rows import LatentRows, latent_rows
from dovetail.engine.attention.partial import attend_part, merge
from dovetail.engine.settings import CacheDType
from dovetail.errors import EngineError
from tests.examples import examples

pytest.importorskip("triton", reason="the kernel needs Triton: see CONTRIBUTING.md")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("the kernel needs a GPU, or Triton's interpreter: see CONTRIBUTING.md", allow_module_level=True)

from dovetail.engine.attention.triton_mla import Launch, attend_latents, check_widths

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KINDS: tuple[CacheDType, ...] = ("auto", "fp8", "fp8_ds_mla")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = (torch.float32, torch.float16) if INTERPRETED else tuple(TOLERANCE)


@pytest.fixture(autouse=True, scope="module")
def _on_the_device() -> Iterator[None]:
    with DEVICE:
        yield


class Paged:
    """Sequences of `contexts` rows in shuffled blocks; every row that belongs to nobody is NaN."""

    def __init__(
        self, kind: CacheDType, dtype: torch.dtype, contexts: Sequence[int], rank: int, rope: int, size: int, seed: int
    ) -> None:
        self.generator = torch.Generator(DEVICE).manual_seed(seed)
        counts = [-(-context // size) for context in contexts]
        total = sum(counts) + 2
        free = torch.randperm(total, generator=self.generator).tolist()
        self.rank, self.rope, self.size = rank, rope, size
        scale = 0.37 if kind == "fp8" else 1.0
        self.rows: LatentRows = latent_rows(kind, total * size, rank, rope, dtype, scale)
        self.rows.data.view(torch.uint8).fill_(255)
        self.table = torch.full((len(contexts), max([1, *counts])), -1, dtype=torch.int32)
        self.latents = []
        for sequence, (context, count) in enumerate(zip(contexts, counts, strict=True)):
            blocks = [free.pop() for _ in range(count)]
            self.table[sequence, :count] = torch.tensor(blocks, dtype=torch.int32)
            where = [block * size + i for block in blocks for i in range(size)][:context]
            index = torch.tensor(where, dtype=torch.int64)
            self.rows.write(index, torch.randn(context, rank + rope, generator=self.generator))
            self.latents.append(self.rows.read(index).float())

    def check(
        self, dtype: torch.dtype, counts: Sequence[int], ends: Sequence[int], heads: int, launch: Launch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compare the kernel with the oracle; returns what the kernel says."""
        starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
        width = self.rank + self.rope
        queries = torch.randn(sum(counts), heads, width, generator=self.generator).to(dtype) * (3 / width**0.5)
        seen = torch.tensor(ends, dtype=torch.int32)
        mixed, sums = attend_latents(
            *(queries, self.rows, self.table, starts, seen),
            **{"rank": self.rank, "block_size": self.size, "most_queries": max(counts), "launch": launch},
        )
        assert mixed.dtype == dtype and sums.dtype == torch.float32
        for sequence, latents in enumerate(self.latents):
            own = slice(int(starts[sequence]), int(starts[sequence + 1]))
            expected, total = attend_part(queries[own], latents, seen[own].long(), self.rank)
            assert (mixed[own].float() - expected).abs().max() < TOLERANCE[dtype]
            assert torch.equal(sums[own] == -torch.inf, total == -torch.inf)
            assert (sums[own] - total).nan_to_num(0).abs().max() < TOLERANCE[dtype]
        return mixed, sums


def causal(counts: Sequence[int], contexts: Sequence[int]) -> list[int]:
    """Where the last `count` tokens of each context end."""
    return [context - count + 1 + i for count, context in zip(counts, contexts, strict=True) for i in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("splits", [1, 3])
def test_ragged_windows(kind: CacheDType, dtype: torch.dtype, splits: int) -> None:
    contexts, counts = (37, 100, 5), (1, 4, 2)
    paged = Paged(kind, dtype, contexts, 64, 16, 16, seed=1)
    paged.check(dtype, counts, causal(counts, contexts), 5, Launch(16, 16, 2, 4, queries=4, splits=splits))


@pytest.mark.parametrize("kind", KINDS)
def test_the_widths_of_published_models(kind: CacheDType) -> None:
    contexts, counts = (300, 70), (4, 1)
    paged = Paged(kind, torch.float16, contexts, 512, 64, 64, seed=2)
    paged.check(torch.float16, counts, causal(counts, contexts), 16, Launch(32, 64, 2, 8, queries=4, splits=4))


# Without shrinking: an example takes a second, and says which shape it has.
@given(data=st.data())
@examples(20, phases=(Phase.explicit, Phase.generate))
def test_any_shape(data: st.DataObject) -> None:
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(DTYPES))
    contexts = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    counts = [data.draw(st.integers(1, 6)) for _ in contexts]
    # Any end for any query: on a rank, a query's end is not the last one's less the difference.
    ends = [data.draw(st.integers(0, c)) for c, count in zip(contexts, counts, strict=True) for _ in range(count)]
    tile = data.draw(st.sampled_from((16, 32)))
    launch = Launch(
        *(data.draw(st.sampled_from((16, 32))), tile, 2, 4),
        queries=data.draw(st.integers(1, 6)),
        splits=data.draw(st.integers(1, 5)),
    )
    rank, rope = data.draw(st.sampled_from(((64, 16), (128, 32), (256, 16))))
    paged = Paged(
        kind, dtype, contexts, rank, rope, data.draw(st.sampled_from((1, 4, 16))), data.draw(st.integers(0, 99))
    )
    paged.check(dtype, counts, ends, data.draw(st.integers(1, 9)), launch)


@pytest.mark.parametrize("interleave", [1, 16])
def test_ranks_merge_to_the_whole(interleave: int) -> None:
    """What four ranks attend to, each by the kernel with its own ends, merged by the float32 sums; one has no rows."""
    context, ranks, count, heads = 40, 4, 3, 4
    launch = Launch(16, 16, 2, 4, queries=3, splits=2)
    owner = torch.arange(context) // interleave % ranks
    whole = Paged("auto", torch.float32, [context], 64, 16, 8, seed=3)
    queries = torch.randn(count, heads, 80, generator=whole.generator) * 0.3
    ends = torch.arange(context - count + 1, context + 1)
    mixed, sums = [], []
    for rank in range(ranks):
        own = whole.latents[0][owner == rank]
        rows = latent_rows("auto", max(len(own), 8), 64, 16, torch.float32)
        rows.write(torch.arange(len(own)), own)
        local = torch.tensor([int((owner[:end] == rank).sum()) for end in ends.tolist()], dtype=torch.int32)
        table = torch.arange(-(-rows.data.shape[0] // 8), dtype=torch.int32).view(1, -1)
        part = attend_latents(
            *(queries, rows, table, torch.tensor([0, count], dtype=torch.int32), local),
            **{"rank": 64, "block_size": 8, "most_queries": count, "launch": launch},
        )
        mixed.append(part[0])
        sums.append(part[1])
    assert (torch.stack(sums) == -torch.inf).any() == (interleave == 16)
    merged, total = merge(torch.stack(mixed), torch.stack(sums))
    expected = attend_part(queries, whole.latents[0], ends, 64)
    assert (merged - expected[0]).abs().max() < 2e-5 and (total - expected[1]).abs().max() < 2e-5


def test_large_queries_stay_in_range() -> None:
    """With a cache in FP8, products are of float16: queries beyond its range still have their scores."""
    paged = Paged("fp8", torch.float32, [20], 64, 16, 4, seed=4)
    queries = torch.zeros(1, 2, 80)
    queries[0, 0, 3], queries[0, 1, 5] = 3e5, -2e5
    starts, end = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    for dtype in (torch.float32, torch.bfloat16):
        own = queries.to(dtype)
        mixed, sums = attend_latents(
            *(own, paged.rows, paged.table, starts, end),
            **{"rank": 64, "block_size": 4, "most_queries": 1, "launch": Launch(16, 16, 2, 4)},
        )
        expected, total = attend_part(own, paged.latents[0], end.long(), 64)
        assert (mixed.float() - expected).abs().max() < 2e-2 and torch.allclose(sums, total, rtol=1e-3)


@pytest.mark.parametrize(
    ("rank", "rope", "name"), [(96, 64, "kv_lora_rank"), (32, 64, "kv_lora_rank"), (512, 8, "rope")]
)
def test_widths_without_sub_tiles(rank: int, rope: int, name: str) -> None:
    with pytest.raises(EngineError, match=f"{name}.* is {rank if 'rank' in name else rope}, and the GPU kernel needs"):
        check_widths(rank, rope)
