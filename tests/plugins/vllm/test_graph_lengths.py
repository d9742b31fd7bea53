"""The gate inside vLLM, and every command that shows it, has CUDA graphs for each number of drafts it can choose."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.plugins.vllm import gate_settings
from dovetail.plugins.vllm.gate_settings import graph_advice as advice

ROOT = Path(__file__).parents[3]
K = 3


def config(*, graphs: bool = True, batch: int = 64, runner: bool = True, data: int = 1, pipeline: int = 1) -> Any:
    """What `advice` reads of vLLM's configuration."""
    return SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: graphs)),
        use_v2_model_runner=runner,
        parallel_config=SimpleNamespace(data_parallel_size=data, pipeline_parallel_size=pipeline),
        scheduler_config=SimpleNamespace(max_num_seqs=batch),
    )


def lookup(ranges: Any, batch: int) -> list[int]:
    """Batch size -> drafts, as vLLM reads the list (v1/spec_decode/dynamic/utils.py): the last number goes on."""
    numbers = [0] * (batch + 1)
    for start, end, number in ranges:
        numbers[start:] = [number] * (batch + 1 - start)
        assert start <= end
    return numbers


def warned(gate: dict[str, Any], ranges: Any = None, **vllm: Any) -> str | None:
    made = config(**vllm)
    captured = None if ranges is None else lookup(ranges, made.scheduler_config.max_num_seqs)
    return advice(made, gate_settings.read({"dovetail": gate}), K, captured)


@pytest.mark.parametrize(
    ("gate", "vllm", "lacking"),
    [
        ({}, {}, "0, 1, 2"),
        ({"speculate_below_context": 9}, {}, "0, 1, 2"),
        ({"gate": "off", "speculate_up_to_batch": 9}, {}, "0"),
        ({"gate": "measured", "speculate_up_to_batch": 9}, {"pipeline": 2}, "0"),  # only limits apply there
        ({}, {"ranges": [[1, 63, 3], [64, 64, 0]]}, "1, 2"),
        ({}, {"ranges": [[1, 500, 3], [501, 501, 0]]}, "0, 1, 2"),  # beyond the largest batch
    ],
)
def test_it_says_what_to_add(gate: dict[str, Any], vllm: dict[str, Any], lacking: str) -> None:
    line = warned(gate, **vllm)
    assert line is not None and "\n" not in line
    assert f"steps with {lacking} drafts have no CUDA graph" in line
    advised = re.search(r'add "num_speculative_tokens_per_batch_size": (\[.*\]) to --speculative-config$', line)
    assert advised is not None
    assert warned(gate, **(vllm | {"ranges": json.loads(advised[1])})) is None


def test_a_batch_with_too_few_sizes() -> None:
    line = warned({}, batch=2)
    assert line is not None
    assert line.endswith("[[1, 1, 3], [2, 2, 2], [3, 3, 1], [4, 4, 0]] to --speculative-config, and --max-num-seqs 4")


@pytest.mark.parametrize(
    ("gate", "vllm"),
    [
        ({"gate": "off"}, {}),  # always the same number
        ({"gate": "off", "speculate_up_to_batch": 9}, {"ranges": [[1, 63, 3], [64, 64, 0]]}),
        ({}, {"ranges": [[1, 61, 3], [62, 62, 2], [63, 63, 1], [64, 64, 0]]}),
        ({}, {"graphs": False}),
        ({}, {"runner": False}),
        ({}, {"data": 2}),
        ({}, {"pipeline": 2}),
    ],
)
def test_it_says_nothing_where_nothing_is_to_be_added(gate: dict[str, Any], vllm: dict[str, Any]) -> None:
    assert warned(gate, **vllm) is None


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


def test_every_command_of_ours_has_the_list() -> None:
    examples = _examples()
    assert "docs/vllm.md" in {page for page, _ in examples}
    for page, command in examples:
        words = shlex.split(command)
        value = {flag: words[place + 1] for place, flag in enumerate(words[:-1]) if flag.startswith("--")}
        speculation, settings = (json.loads(value[flag]) for flag in ("--speculative-config", "--additional-config"))
        batch = int(value["--max-num-seqs"])
        captured = lookup(speculation.get("num_speculative_tokens_per_batch_size") or [], batch)
        most = speculation["num_speculative_tokens"]
        assert advice(config(batch=batch), gate_settings.read(settings), most, captured) is None, page
