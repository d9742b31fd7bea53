"""The measurement of engines beside each other: its counts, its checkpoints, and a row for every engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file

import dovetail
from benchmarks.engine import figures, gguf_model, shapes
from benchmarks.engine.cases import Case, Reads, cases

pytestmark = pytest.mark.slow

TINY = shapes.LLAMA | {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


class Flat:
    """A model of which every step reads 100 bytes."""

    def step(self, sequences: float, context: float) -> float:
        assert (sequences, context) == (2, 3 + (2 + 6) / 2 / 2)
        return 100.0


def test_decoding_is_what_all_sequences_take_part_in() -> None:
    log = [(1.0, [1, 0]), (3.0, [1, 1]), (4.0, [2, 2]), (5.0, [4, 2]), (9.0, [4, 4])]
    run = figures.run(log, [(0, 0), (0, 0, 0, 0)], 4, Flat())  # type: ignore[arg-type]
    assert run == figures.Run(whole=8 / 9, decode=4 / 2, length=4 / 2 / 2, bytes_per_second=2 * 100 / 2)


def test_too_few_tokens_are_said() -> None:
    with pytest.raises(ValueError, match="2 tokens are too few"):
        figures.run([(1.0, [2, 0]), (2.0, [2, 2])], [(0,), (0,)], 2, Flat())  # type: ignore[arg-type]


def test_median_of_each_figure() -> None:
    runs = [figures.Run(1, 30, 2, 5), figures.Run(2, 10, 3, 6), figures.Run(3, 20, 1, 7)]
    assert figures.median(runs) == figures.Run(2, 20, 2, 6)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], None),
        ([[1, 2, 3], [3, 4, 5]], [[1, 2, 4], [3, 5, 5]], (1, 1)),
        ([[1, 2, 3]], [[1, 2]], (0, 2)),
    ],
)
def test_first_difference(ours: list[list[int]], theirs: list[list[int]], found: tuple[int, int] | None) -> None:
    assert figures.first_difference(ours, theirs) == found


def test_the_llama_is_the_same_each_time_and_never_ends(tmp_path: Path) -> None:
    first, second = (load_file(shapes.llama(tmp_path / name, TINY) / "model.safetensors") for name in "ab")
    assert first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
    assert not first["lm_head.weight"][TINY["eos_token_id"]].any()
    assert dovetail.tokenizer(tmp_path / "a").vocab_size == TINY["vocab_size"]


def test_bytes_of_a_step_are_all_matrices_but_embeddings(tmp_path: Path) -> None:
    target = shapes.llama(tmp_path, TINY)
    matrices = {name: tensor for name, tensor in load_file(target / "model.safetensors").items() if tensor.dim() > 1}
    weights = sum(tensor.numel() for name, tensor in matrices.items() if "embed" not in name)
    cached = 2 * TINY["num_key_value_heads"] * TINY["head_dim"] * TINY["num_hidden_layers"]
    case = Case("tiny", target, None, 0, 8)
    assert Reads(case, "float32").step(3, 10) == 4 * (weights + 3 * 10 * cached)
    assert Reads(case, "bfloat16").step(1, 0) == 2 * weights
    assert Reads(case, "int8").step(1, 10) == weights + 4 * 10 * cached


def test_a_step_reads_the_experts_that_its_tokens_choose(tmp_path: Path) -> None:
    off, on = cases(["demo", "demo-drafting"], tmp_path, 3, 0)
    tensors = load_file(off.target / "model.safetensors")
    experts = sum(tensor.numel() for name, tensor in tensors.items() if ".experts." in name)
    one, two, many = (Reads(off, "float32").step(count, 0) for count in (1, 2, 1000))
    assert two - one == pytest.approx(4 * experts * (0.25 * 0.75)) and many - one == pytest.approx(4 * experts * 0.75)
    drafter = load_file(on.drafter / "model.safetensors") if on.drafter else {}
    drafts = 3 * sum(tensor.numel() for name, tensor in drafter.items() if tensor.dim() > 1)
    assert Reads(on, "float32").step(1, 0) - one == pytest.approx(4 * (drafts + experts * (0.75 - 0.75**4)))


def test_prompts_are_others_in_each_turn_and_long_enough(tmp_path: Path) -> None:
    (case,) = cases(["demo"], tmp_path, 3, 0)
    prompts = [tuple(prompt) for turn in range(2) for count in (1, 4) for prompt in case.prompts(count, turn, 60)]
    assert len(set(prompts)) == 10
    assert case.prompts(4, 1, 60) == case.prompts(4, 1, 60)


@pytest.mark.proof
def test_an_engine_that_is_absent_has_its_row(tmp_path: Path) -> None:
    command = "--cases demo --dtypes float32 --threads 1 --batches 1 2 --turns 1 --tokens 12 --json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.engine",
            *command.split(),
            "--only",
            "Dovetail",
            "vLLM",
            "--peers",
            tmp_path,
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = [(cell["engine"], cell["batch"], cell.get("error")) for cell in json.loads(done.stdout)["cells"]]
    absent = "not installed"
    assert rows == [("Dovetail", 1, None), ("vLLM", 1, absent), ("Dovetail", 2, None), ("vLLM", 2, absent)]


@pytest.mark.parametrize("published", [True, False])
def test_a_gguf_file_is_a_checkpoint_and_a_file_of_the_same_numbers(tmp_path: Path, published: bool) -> None:
    from tests.gguf_files import write

    written = write(tmp_path / "tiny.gguf", kind="Q8_0")
    target, whole = gguf_model.checkpoint(tmp_path / "tiny.gguf", tmp_path / "made", published=published)
    stored = {tensor.name: tensor.data for tensor in GGUFReader(whole).tensors}
    for name, weights in written.items():
        expected = torch.from_numpy(weights)
        expected = expected.bfloat16().float() if published and expected.dim() > 1 else expected
        assert torch.equal(torch.from_numpy(stored[name].copy()), expected), name
    folder = load_file(target / "model.safetensors")
    assert torch.equal(
        folder["model.layers.1.mlp.up_proj.weight"].float(), torch.from_numpy(stored["blk.1.ffn_up.weight"].copy())
    )
    assert folder["model.norm.weight"].dtype == (torch.bfloat16 if published else torch.float32)
    (case, other) = cases((), tmp_path / "made", 0, 8, tmp_path / "tiny.gguf")
    assert (case.gguf, other.gguf) != (None, None) and Reads(other, "float32").step(1, 8) > 0
    assert [len(prompt) for prompt in case.prompts(2, 0, 4)] == [8, 8]


@pytest.mark.proof
def test_a_profile_names_operators_and_the_step() -> None:
    command = "--case demo --steps 2 --rows 4 --markdown"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine.profile", *command.split()],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("aten::") + done.stdout.count("mkldnn::") == 4
    assert "A step takes" in done.stdout
