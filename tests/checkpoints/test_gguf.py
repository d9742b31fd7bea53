"""A GGUF file is a checkpoint: its config, tokenizer and format come from its header, and a damaged one is refused in
one line before anything loads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.checkpoints.gguf.header import read_header
from dovetail.checkpoints.gguf.tokenizer import tokenizer_json
from dovetail.checkpoints.hub import find
from dovetail.checkpoints.target import read_target
from dovetail.errors import CheckpointError, DovetailError
from dovetail.plan import resolve
from tests.examples import examples
from tests.gguf_files import BYTES as LETTERS
from tests.gguf_files import CONTROLS, SHAPE, read_json, vocabulary, with_type, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write(file)
    return file.read_bytes()


def test_a_file_is_planned_for(tmp_path: Path) -> None:
    write(tmp_path / "tiny-Q4_0.gguf", kind="Q4_0")
    plan = resolve(str(tmp_path / "tiny-Q4_0.gguf"), {"engine": "embedded"})
    assert plan.value("served_model_name") == "tiny-Q4_0"
    assert plan.fit is not None and plan.target is not None
    # Four bits and a scale for each number of the matrices, and norms in float32.
    matrices = len(vocabulary()) * 64 + 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 96)
    assert (plan.fit.weights, plan.fit.weights_from) == (matrices * 18 // 32 + 5 * 64 * 4, "files")
    assert plan.fit.cache_per_token == 2 * 2 * 2 * 16 * 4
    assert (plan.target.layers, plan.target.hidden, plan.target.context) == (2, 64, 128)
    assert plan.target.dtype == "Q4_0" and plan.target.eos_ids == (2, 0)


def test_the_format_and_the_tokenizer_are_the_files_own(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    fmt, tokenizer = dovetail.format(tmp_path / "tiny.gguf"), dovetail.tokenizer(tmp_path / "tiny.gguf")
    prompt = fmt.render([{"role": "user", "content": "<|im_end|> the 12"}], None)
    assert prompt.text == "<|im_start|>user\n<|im_end|> the 12<|im_end|>\n<|im_start|>assistant\n"
    ids = prompt.ids(tokenizer)
    assert ids.count(CONTROLS.index("<|im_end|>")) == 1, "the one that the user wrote is text"
    assert tokenizer.decode(ids) == prompt.text
    assert vocabulary().index("Ġthe") in ids


def test_a_folder_may_hold_nothing_but_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model" / "tiny.gguf")
    assert find(str(tmp_path / "model")) == find(str(tmp_path / "model" / "tiny.gguf"))
    write(tmp_path / "model" / "other.gguf", seed=1)
    with pytest.raises(CheckpointError, match=r"several GGUF files: give one of other\.gguf, tiny\.gguf"):
        find(str(tmp_path / "model"))


def test_the_folder_follows_the_file(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write(file)
    first = gguf_folder(file)
    assert gguf_folder(file) == first, "made once"
    write(file, metadata={"llama.context_length": 64})
    os.utime(file, ns=(1, 1))
    second = gguf_folder(file)
    assert read_json(second, "config.json")["max_position_embeddings"] == 64
    file.unlink()
    write(tmp_path / "other.gguf")
    other = Path(gguf_folder(tmp_path / "other.gguf"))
    assert list(other.parent.iterdir()) == [other], "folders of files that are gone are removed"


def test_there_may_be_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write(tmp_path / "tiny.gguf")
    assert read_target(gguf_folder(tmp_path / "tiny.gguf")).layers == 2


@pytest.mark.parametrize(
    ("metadata", "declared"),
    [
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {"rope_type": "linear"}),
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
    ],
)
def test_positions_are_scaled(tmp_path: Path, metadata: dict[str, Any], declared: dict[str, Any]) -> None:
    write(tmp_path / "tiny.gguf", metadata=metadata)
    rope = read_json(gguf_folder(tmp_path / "tiny.gguf"), "config.json")["rope_parameters"]
    assert rope | declared == rope


def test_other_architectures_are_described_too(tmp_path: Path) -> None:
    """For llama.cpp, which runs them: experts, latents, and layers without a cache."""
    experts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
    latents = {"attention.kv_lora_rank": 48, "attention.key_length_mla": 24, "rope.dimension_count": 8}
    shape = experts | latents | {"attention.value_length_mla": 16}
    write(tmp_path / "moe.gguf", "deepseek2", metadata={f"deepseek2.{name}": value for name, value in shape.items()})
    target = read_target(gguf_folder(tmp_path / "moe.gguf"))
    assert target.experts is not None and (target.experts.routed, target.experts.active) == (8, 2)
    assert (target.attention.kind, target.attention.kv_lora_rank, target.attention.rope_dim) == ("mla", 48, 8)
    write(tmp_path / "hybrid.gguf", "lfm2", metadata={"lfm2.attention.head_count_kv": [0, 2]})
    target = read_target(gguf_folder(tmp_path / "hybrid.gguf"))
    assert (target.attention.kv_heads, target.attention.linear_layers) == (2, 1)


def test_a_split_model_is_one(tmp_path: Path) -> None:
    write(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(CheckpointError, match=r"one of 2 parts, and m-00002-of-00002\.gguf is not beside it"):
        read_header(tmp_path / "m-00001-of-00002.gguf")
    write(tmp_path / "many-00001-of-99999.gguf")
    with pytest.raises(CheckpointError, match=r"many-00002-of-99999\.gguf is not beside it, nor are 99997 others$"):
        read_header(tmp_path / "many-00001-of-99999.gguf")
    write(tmp_path / "m-00002-of-00002.gguf", tensors={"extra.weight": np.ones(4, np.float32)})
    for part in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        header = read_header(tmp_path / part)
        assert header.file.name == "m-00001-of-00002.gguf" and "extra.weight" in header.tensors


# Damaged files.


@given(cut=st.floats(0, 1, exclude_max=True))
@examples(40)
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, whole: bytes, cut: float) -> None:
    file = tmp_path_factory.mktemp("cut") / "cut.gguf"
    file.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(CheckpointError, match=r"is cut short|is not a GGUF file") as caught:
        find(str(file))
    assert "\n" not in caught.value.message


@given(at=st.integers(0, 3000), byte=st.integers(0, 255))
@examples(60)
def test_a_damaged_header_is_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, at: int, byte: int
) -> None:
    file = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    file.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    try:
        read_target(find(str(file)))
    except DovetailError as error:
        assert "\n" not in error.message


def _named(name: str, **changes: Any) -> Callable[[Path], None]:
    return lambda file: write(file, name, **changes) and None


def _quantized(file: Path) -> None:
    write(file)
    with_type(file, "blk.1.ffn_up.weight", 199)


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (_quantized, r"tensor 'blk\.1\.ffn_up\.weight' has the quantization 199, which is not known here"),
        (lambda file: file.write_bytes(b"PK\3\4" + bytes(99)), "not with b'GGUF', so it is not a GGUF file"),
        (lambda file: file.write_bytes(b"GGUF\1\0\0\0" + bytes(99)), "GGUF version 1 is not supported"),
        (lambda file: file.write_bytes(b"GGUF\0\0\0\3" + bytes(99)), "it is big-endian"),
        (_named("llama", vocab=320), r"its tokenizer has 263 tokens, its model 320"),
        (_named("llama", metadata={"tokenizer.ggml.tokens": None}), "holds no tokenizer"),
        (_named("llama", metadata={"tokenizer.ggml.model": "rwkv"}), "its tokenizer is of the kind 'rwkv'"),
        (
            _named("llama", metadata={"tokenizer.ggml.pre": "odd"}),
            r"how its tokenizer splits text \('odd'\) is not known",
        ),
        (_named("llama", metadata={"llama.block_count": None}), r"llama\.block_count is missing"),
        (_named("llama", metadata={"llama.embedding_length": "64"}), "must be a whole number, found '64'"),
        (_named("clip"), r"holds no language model \(clip"),
        (_named("llama", metadata={"general.alignment": 0}), r"general\.alignment is 0"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, make: Callable[[Path], object], refusal: str) -> None:
    file = tmp_path / "odd.gguf"
    make(file)
    with pytest.raises(CheckpointError, match=refusal) as caught:
        resolve(str(file), {})
    assert str(file) in caught.value.message and "\n" not in caught.value.message


def test_a_name_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no folder \S+missing\.gguf: give a checkpoint's folder, a GGUF"):
        find(str(tmp_path / "missing.gguf"))


# Tokenizers.


def test_byte_level_ids_are_those_of_the_library(tmp_path: Path, small_tokenizer_file: Path) -> None:
    published = json.loads(small_tokenizer_file.read_text())
    added = {token["id"]: token["content"] for token in published["added_tokens"]}
    ids = {number: token for token, number in published["model"]["vocab"].items()} | added
    tokens = [ids[number] for number in range(len(ids))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in published["model"]["merges"]]
    kinds = [3 if number in added else 1 for number in range(len(ids))]
    changes = {"tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.pre": "gpt-2"}
    write(tmp_path / "tiny.gguf", tokens=tokens, metadata=changes)
    ours, theirs = dovetail.tokenizer(tmp_path / "tiny.gguf"), dovetail.tokenizer(small_tokenizer_file)
    assert ours.control == theirs.control
    for text in ("the user asks for  tool_call 33 \n\n weather's", "Überraschung 日本 <|im_end|>", " " * 9):
        assert ours.encode(text) == theirs.encode(text)


def test_pieces_with_scores_are_merged_by_them(tmp_path: Path) -> None:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "t",
        "h",
        "e",
        "he",
        "th",
        "▁th",
    ]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 7]
    scores = [0.0] * 259 + [-4.0, -5.0, -6.0, -7.0, -3.0, -2.0, -1.0]
    changes = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None}
    changes |= {"tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds}
    write(tmp_path / "tiny.gguf", tokens=tokens, metadata=changes)
    tokenizer = dovetail.tokenizer(tmp_path / "tiny.gguf")
    spell = [tokens[number] for number in tokenizer.encode("the é")]
    assert spell == ["th", "e", "▁", "<0xC3>", "<0xA9>"], "no space before text in the middle of a prompt"
    assert tokenizer.decode(tokenizer.encode("the é")) == "the é"
    library = tokenizers.Tokenizer.from_file(str(Path(gguf_folder(tmp_path / "tiny.gguf")) / "tokenizer.json"))
    assert library.encode("the").tokens == ["▁th", "e"]


def test_letters_are_gpt2s() -> None:
    assert len(set(LETTERS)) == 256 and SHAPE["embedding_length"] == 64


@pytest.mark.skipif(
    "DOVETAIL_LLAMA_SERVER" not in os.environ, reason="DOVETAIL_LLAMA_SERVER names no build of llama.cpp"
)
def test_ids_are_llama_cpps() -> None:
    """On the vocabularies and texts that llama.cpp tests itself with (tests/llama_cpp/setup.sh)."""
    texts_of = sorted(Path(os.environ["DOVETAIL_LLAMA_SERVER"]).with_name("vocabularies").glob("*.gguf.inp"))
    compared = 0
    for file in (each.with_suffix("") for each in texts_of):
        header = read_header(file)
        try:
            spec = tokenizer_json(header.metadata, file)
        except CheckpointError as error:
            assert re.search("is not known here|which is not read", error.message)
            continue
        library = tokenizers.Tokenizer.from_str(json.dumps(spec))
        texts = Path(f"{file}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        for text, line in zip(texts, Path(f"{file}.out").read_text().split("\n"), strict=False):
            assert library.encode(text, add_special_tokens=False).ids == [*map(int, line.split())], (file.name, text)
            compared += 1
    assert compared > 500
