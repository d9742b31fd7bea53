"""The gate inside vLLM chooses numbers of drafts that have CUDA graphs, and vLLM gets the list to capture them."""

from __future__ import annotations

import json
import re
import shlex
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gate import CostModel, Track
from dovetail.plugins.vllm import gate_settings, graphs

ROOT = Path(__file__).parents[3]
K = 3


def config(
    gate: dict[str, Any] | None = None,
    *,
    most: int = K,
    ranges: Any = None,
    whole: bool = True,
    parts: bool = False,
    batch: int = 64,
    runner: bool = True,
    data: int = 1,
    pipeline: int = 1,
    scheduler: Any = graphs.SCHEDULER,
) -> Any:
    """What `graphs` reads of vLLM's configuration, with vLLM's own sizes."""
    largest = min(batch * (most + 1) * 2, 512)
    sizes = [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    mode = SimpleNamespace(has_full_cudagraphs=lambda: whole, has_piecewise_cudagraphs=lambda: parts)
    return SimpleNamespace(
        additional_config={"dovetail": gate or {}},
        compilation_config=SimpleNamespace(
            cudagraph_mode=mode,
            cudagraph_capture_sizes=[size for size in sizes if size <= largest],
            max_cudagraph_capture_size=largest,
        ),
        use_v2_model_runner=runner,
        parallel_config=SimpleNamespace(data_parallel_size=data, pipeline_parallel_size=pipeline),
        scheduler_config=SimpleNamespace(max_num_seqs=batch, scheduler_cls=scheduler),
        speculative_config=SimpleNamespace(num_speculative_tokens=most, num_speculative_tokens_per_batch_size=ranges),
    )


@pytest.mark.parametrize(
    ("method", "runner", "whole"), [("ngram_gpu", False, True), ("ngram_gpu", True, False), ("ngram", False, False)]
)
def test_the_older_runners_ngram_gpu_makes_all_drafts(method: str, runner: bool, whole: bool) -> None:
    made = config(runner=runner)
    made.speculative_config.method = method
    assert graphs.makes_all_drafts(made) is whole
    made.speculative_config = None
    assert not graphs.makes_all_drafts(made)


def added(made: Any) -> Any:
    graphs.add_list(made)
    return made.speculative_config.num_speculative_tokens_per_batch_size


def lookup(ranges: Any, batch: int) -> list[int]:
    """Batch size -> drafts, as vLLM reads the list (v1/spec_decode/dynamic/utils.py): the last number goes on."""
    numbers, end = [0] * (batch + 1), 0
    for start, last, number in ranges:
        assert start == end + 1 and start <= last, "vLLM wants them sorted, from 1, without gaps"
        numbers[start:] = [number] * (batch + 1 - start)
        end = last
    return numbers


@pytest.mark.parametrize(
    ("gate", "vllm", "ranges"),
    [
        ({}, {}, [[1, 62, 3], [63, 63, 1], [64, 64, 0]]),
        ({"speculate_below_context": 9}, {}, [[1, 62, 3], [63, 63, 1], [64, 64, 0]]),
        ({"gate": "off", "speculate_up_to_batch": 9}, {}, [[1, 63, 3], [64, 64, 0]]),
        ({"speculate_up_to_batch": 9}, {"pipeline": 2}, [[1, 63, 3], [64, 64, 0]]),  # only limits apply there
        ({}, {"most": 1}, [[1, 63, 1], [64, 64, 0]]),
        ({}, {"most": 5}, [[1, 61, 5], [62, 62, 3], [63, 63, 1], [64, 64, 0]]),
        ({}, {"batch": 2}, [[1, 1, 3], [2, 2, 0]]),
        ({}, {"batch": 1}, None),
        ({"gate": "off"}, {}, None),  # always the same number
        ({}, {"pipeline": 2}, None),
        ({}, {"whole": False}, None),
        ({}, {"runner": False}, None),
        ({}, {"data": 2}, None),
        ({}, {"scheduler": None}, None),
        ({}, {"scheduler": "another.Scheduler"}, None),
        ({}, {"ranges": [[1, 64, 2]]}, [[1, 64, 2]]),  # the operator's own
    ],
)
def test_vllm_gets_the_list_that_the_gate_needs(gate: dict[str, Any], vllm: dict[str, Any], ranges: Any) -> None:
    assert added(config(gate, **vllm)) == ranges


def test_a_scheduler_may_be_given_as_a_class_and_drafts_may_be_off() -> None:
    named = type("GatedScheduler", (), {"__module__": "dovetail.plugins.vllm.scheduler"})
    assert added(config(scheduler=named)) is not None
    off = config()
    off.speculative_config = None
    graphs.add_list(off)


def captured(made: Any, most: int, numbers: list[int]) -> dict[int, list[tuple[int, int, int]]]:
    """Tokens of a step -> the graphs that vLLM looks at, as tokens, sequences, drafts (gpu/cudagraph_utils.py)."""
    batch, found = made.scheduler_config.max_num_seqs, list[tuple[int, int, int]]()
    largest = made.compilation_config.max_cudagraph_capture_size
    for size in made.compilation_config.cudagraph_capture_sizes:
        for k in numbers:
            tokens = -(-size // (k + 1)) * (k + 1)
            fits = tokens <= min(batch * (most + 1), largest) and tokens // (k + 1) <= batch
            if size <= batch * (most + 1) and fits and (tokens, tokens // (k + 1), k) not in found:
                found.append((tokens, tokens // (k + 1), k))
    candidates, start = dict[int, list[tuple[int, int, int]]](), 0
    for tokens, same in groupby(sorted(found), lambda graph: graph[0]):
        graphs_of = list(same)
        candidates |= {key: graphs_of for key in range(start, tokens + 1)}
        start = tokens + 1
    return candidates


@given(st.integers(1, 8), st.integers(1, 80), st.booleans())
def test_a_number_is_available_where_vllm_finds_a_graph(most: int, batch: int, measured: bool) -> None:
    made = config(None if measured else {"gate": "off", "speculate_up_to_batch": 1}, most=most, batch=batch)
    ranges = added(made)
    dense = None if ranges is None else lookup(ranges, batch)
    numbers = [most] if dense is None else sorted({*dense[1:]})
    candidates, available = captured(made, most, numbers), graphs.available(made, most, dense)
    assert available is not None
    for sequences in range(1, batch + 1):
        has = [
            k
            for k in numbers
            if any(of == k and room >= sequences for _, room, of in candidates.get(sequences * (k + 1), ()))
        ]
        assert sorted(available(sequences)) == (has or numbers), sequences


def test_one_or_three_or_seven_drafts_have_graphs_for_every_batch() -> None:
    """For other numbers some batches lack some graphs, and the gate does without these numbers there."""
    for most, whole in ((1, True), (3, True), (7, True), (2, False), (5, False)):
        made = config(most=most)
        available = graphs.available(made, most, lookup(added(made), 64))
        assert available is not None
        everywhere = all(
            sorted(available(n)) == sorted({0, *(k for k in (1, 3) if k < most), most}) for n in range(1, 65)
        )
        assert everywhere is whole
    assert (
        graphs.available(config(parts=True), K, None) is None and graphs.available(config(whole=False), K, None) is None
    )
    alone = graphs.available(config(runner=False), K, None)
    assert alone is not None and list(alone(9)) == [K]


def test_the_gate_chooses_only_numbers_that_have_graphs() -> None:
    made = config(most=5)
    available = graphs.available(made, 5, lookup(added(made), 64))
    gate = gate_settings.read({}).gate_for(CostModel.unmeasured(), 5, available)
    chosen = set[tuple[int, int]]()
    for step in range(1500):
        batch = 1 + step // 40 % 24
        tracks = [Track() for _ in range(batch)] if step % 40 == 0 else tracks  # noqa: F821
        drafts = gate.decide(tracks, [10] * batch, [5] * batch).allowed
        assert len({*drafts}) == 1
        stood = 5 if step // 500 % 2 == 0 else 0
        gate.observe(
            [(track, drafts[0], drafts[0], min(stood, drafts[0])) for track in tracks] if drafts[0] else [], 1.0
        )
        chosen.add((batch, drafts[0]))
    assert available is not None and all(k in available(batch) for batch, k in chosen)
    assert {k for _, k in chosen} >= {0, 5}


def _examples() -> list[tuple[str, str]]:
    """Every command with the gated scheduler in the pages, the files for deployment and the plans, with its file."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*")]
    pages += [*(ROOT / "clients").rglob("*.md"), *(ROOT / "tests/plan/emitted").glob("*.vllm")]
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8", errors="ignore")
        for command in re.findall(r"vllm serve [^`]*", text):
            if "--scheduler-cls" in command:
                found.append((str(page.relative_to(ROOT)), command.replace("\\\n", " ")))
    return found


def test_no_command_of_ours_lets_the_gate_choose_a_step_without_a_graph() -> None:
    examples = _examples()
    assert "docs/vllm.md" in {page for page, _ in examples}
    for page, command in examples:
        words = shlex.split(command)
        value = {flag: words[place + 1] for place, flag in enumerate(words[:-1]) if flag.startswith("--")}
        speculation, settings = (json.loads(value[flag]) for flag in ("--speculative-config", "--additional-config"))
        batch, most = int(value.get("--max-num-seqs", 256)), speculation["num_speculative_tokens"]
        ranges = speculation.get("num_speculative_tokens_per_batch_size")
        made = config(settings["dovetail"], most=most, batch=batch, ranges=ranges)
        available = graphs.available(made, most, lookup(added(made), batch))
        assert available is not None and {0, most} <= {*available(1)}, page
