"""Weights of GGUF files: the same numbers, in the order and under the names of a checkpoint's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file

import dovetail
from dovetail.checkpoints.gguf.config import tensor_name
from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.checkpoints.positions import Llama3Scaling, Rope
from dovetail.checkpoints.tensor_files import TensorHeader
from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.gguf import dequantized
from dovetail.engine.loading import load_models
from dovetail.engine.models.layers import rotary_table
from dovetail.engine.settings import EngineSettings
from dovetail.engine.weights import inspect_target, load_tensors
from dovetail.errors import CheckpointError
from tests.engine.checkpoints import run
from tests.gguf_files import read_json, vocabulary, with_type, write


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def as_folder(file: Path, written: dict[str, np.ndarray], architecture: str) -> Path:
    """The same model as a folder: with its weights in safetensors, and Llama's heads as they are on the hub."""
    folder = file.with_suffix("")
    shutil.copytree(gguf_folder(file), folder, ignore=shutil.ignore_patterns("*.gguf"))
    tensors = {}
    for name, tensor in written.items():
        heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2], 0) if architecture == "llama" else 0
        if heads:
            width = tensor.shape[0] // heads
            rows = [head * width + row + half for head in range(heads) for half in (0, 1) for row in range(0, width, 2)]
            tensor = tensor[rows]
        own = tensor_name(name)
        assert own is not None
        tensors[own] = torch.from_numpy(np.ascontiguousarray(tensor))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_weights_are_the_folders(tmp_path: Path, architecture: str, kind: str) -> None:
    written = write(tmp_path / "tiny.gguf", architecture, kind)
    folder = as_folder(tmp_path / "tiny.gguf", written, architecture)
    ours, theirs = inspect_target(Path(gguf_folder(tmp_path / "tiny.gguf"))), inspect_target(folder)
    assert ours.config == theirs.config
    names = ours.config.expected_tensors()
    for rank, ranks in ((0, 1), (0, 2), (1, 2)):
        read = (load_tensors(each.tensors, names, rank=rank, ranks=ranks) for each in (ours, theirs))
        mine, yours = map(dict, read)
        assert all(torch.equal(mine[name].float(), yours[name]) for name in names)


def test_greedy_ids_are_the_folders(tmp_path: Path) -> None:
    written = write(tmp_path / "tiny.gguf", kind="Q4_1")
    folder = as_folder(tmp_path / "tiny.gguf", written, "llama")
    tokenizer, settings = dovetail.tokenizer(folder), EngineSettings(draft_tokens=0, threads=1)
    completion = Completion((1, 40, 50, 60), 24, Sampling(temperature=0), ignore_eos=True)
    outputs = []
    for path in (Path(gguf_folder(tmp_path / "tiny.gguf")), folder):
        core = LLMCore(load_models(path, None, tokenizer, settings), tokenizer, settings)
        outputs.append(run(core, {"a": completion})["a"])
    assert outputs[0] == outputs[1] and len(outputs[0]) == 24


def test_llama_3_is_known_by_its_divisors(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    scaled = Rope(type="llama3", theta=500000.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192))
    angles = [rotary_table(rope, 128, 2).angle()[1] for rope in (Rope(theta=500000.0), scaled)]
    factors = {"rope_freqs.weight": (angles[0] / angles[1]).numpy()}
    write(tmp_path / "tiny.gguf", metadata={"llama.rope.freq_base": 500000.0}, tensors=factors)
    assert read_json(gguf_folder(tmp_path / "tiny.gguf"), "config.json")["rope_parameters"] == scaling
    write(tmp_path / "other.gguf", tensors={"rope_freqs.weight": np.arange(1, 65, dtype=np.float32)})
    with pytest.raises(CheckpointError, match="rope type 'stored' is not supported"):
        inspect_target(Path(gguf_folder(tmp_path / "other.gguf")))


#: One block of each, all of whose numbers are the same: its bytes, and the number.
_ONE = np.float16(1).tobytes()
_BLOCKS = {
    # d, dmin, scales and minima of 6 bits each (all 1), quants of 4 bits (all 5): d * scale * 5 - dmin * 1
    "Q4_K": (_ONE + _ONE + bytes([1, 1, 1, 1, 1, 1, 1, 1, 17, 17, 17, 17]) + bytes([0x55]) * 128, 4.0),
    # the same with a fifth bit for each: 16 more
    "Q5_K": (_ONE + _ONE + bytes([1, 1, 1, 1, 1, 1, 1, 1, 17, 17, 17, 17]) + b"\xff" * 32 + bytes([0x55]) * 128, 20.0),
    # low 4 bits (all 5), high 2 bits (all 0), scales (all 2), d: d * scale * (5 - 32)
    "Q6_K": (bytes([0x55]) * 128 + bytes(64) + bytes([2]) * 16 + _ONE, -54.0),
}


@pytest.mark.parametrize("kind", _BLOCKS)
def test_blocks_of_256(kind: str) -> None:
    block, number = _BLOCKS[kind]
    header = TensorHeader(Path("a.gguf"), kind, (2, 256), 0, 2 * len(block))
    assert GGMLQuantizationType[kind]
    assert torch.equal(dequantized(bytearray(2 * block), header).view(2, 256), torch.full((2, 256), number))


def test_what_the_engine_does_not_read_is_named(tmp_path: Path) -> None:
    write(tmp_path / "odd.gguf", "olmo9")
    with pytest.raises(CheckpointError, match=r"architecture Olmo9ForCausalLM \(model_type 'olmo9'\) is not supported"):
        inspect_target(Path(gguf_folder(tmp_path / "odd.gguf")))
    write(tmp_path / "iq.gguf", kind="Q4_0")
    with_type(tmp_path / "iq.gguf", "blk.0.ffn_up.weight", 20)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is stored as IQ4_NL, expected BF16, F16, F32, Q2_K"):
        inspect_target(Path(gguf_folder(tmp_path / "iq.gguf")))
    assert len(vocabulary()) == 263
