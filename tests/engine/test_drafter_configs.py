"""A drafter that does not fit its target is refused with one `CheckpointError` before any weights load."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.checkpoints.drafter import read_drafter
from dovetail.engine.config import Eagle3Config, drafter_config
from dovetail.engine.drafting.load import inspect_drafter
from dovetail.engine.weights import inspect_target
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import write
from tests.engine.checkpoints import (
    DRAFTER,
    LLAMA,
    MLA_DRAFTER,
    PLAIN_DRAFTER,
    described,
    load_core,
    write_drafter,
    write_llama,
    write_mtp_target,
    write_target,
)
from tests.engine.test_weights import Change, config, tensors

CONFIGS = Path("../shared/data/configs")
PEAGLE = {"speculators_model_type": "peagle", "mask_token_id": 96}


def layer(**changes: Any) -> Change:
    return config(transformer_layer_config=DRAFTER["transformer_layer_config"] | changes)


def verifier(**fields: Any) -> Change:
    return config(speculators_config=DRAFTER["speculators_config"] | {"verifier": fields})


def without(name: str) -> Change:
    return tensors(lambda w: w.pop(name))


def both(*changes: Change) -> Change:
    def change(path: Path) -> None:
        for one in changes:
            one(path)

    return change


def resized(name: str, *shape: int) -> Change:
    return tensors(lambda w: w.update({name: torch.zeros(shape)}))


BAD: dict[str, tuple[Change, str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "no layer": (config(transformer_layer_config=None), "transformer_layer_config"),
    "proposals as a string": (config(speculators_config={"proposal_methods": "x"}), "proposal_methods must be a list"),
    "a block that is a list": (config(speculators_config=[1]), "speculators_config must be an object"),
    "another layer": (layer(model_type="mistral"), "model_type is 'mistral', not llama or qwen3"),
    "a sliding window": (layer(sliding_window=64), "sliding_window is 64"),
    "quantized": (layer(quantization_config={"bits": 8}), "quantization_config is set"),
    "heads": (layer(num_key_value_heads=4), "num_key_value_heads is 4, which does not divide the 6"),
    "a string for a flag": (config(norm_before_fc="yes"), "norm_before_fc"),
    "target hidden size": (config(target_hidden_size=64), "hidden states 64 wide .*, the target's hidden_size is 48"),
    "hidden size": (layer(hidden_size=40, head_dim=8), "hidden states 40 wide .*, the target's hidden_size is 48"),
    "vocabulary": (layer(vocab_size=128), "vocab_size is 128, the target's vocab_size is 97"),
    "a default vocabulary": (layer(vocab_size=None), "vocab_size is 32000, the target's vocab_size is 97"),
    "draft vocabulary": (config(draft_vocab_size=98), "draft_vocab_size is 98, the target's vocab_size is 97"),
    "aux layers": (config(eagle_aux_hidden_state_layer_ids=[1, 29]), r"\[1, 29\], the target has 3 layers"),
    "negative aux layers": (config(eagle_aux_hidden_state_layer_ids=[-1, 2]), r"layer numbers from 0, found \[-1, 2\]"),
    "no aux layers": (config(eagle_aux_hidden_state_layer_ids=None), "aux_layers"),
    "aux layers by name": (config(eagle_aux_hidden_state_layer_ids=["low"]), "aux_layers"),
    "count of aux layers": (
        config(eagle_aux_hidden_state_layer_ids=[0, 2]),
        r"fc.weight has shape \[48, 144\], but 2 auxiliary layers of the target's hidden_size 48 are 96 numbers",
    ),
    "missing tensor": (without("fc.weight"), r"fc.weight is missing .*\[48, 144\]"),
    "missing norm": (config(norm_before_fc=True), r"input_norm.weight is missing .*\[144\]"),
    "missing norms": (config(fc_norm=True), r"fc_norm.0.weight is missing .*\[48\]"),
    "missing layer": (layer(num_hidden_layers=2), "layers.1.input_layernorm.weight is missing"),
    "narrow attention": (
        resized("layers.0.self_attn.q_proj.weight", 48, 48),
        r"q_proj.weight has shape \[48, 48\], expected \[48, 96\]",
    ),
    "no vocabulary map": (both(config(draft_vocab_size=40), resized("lm_head.weight", 40, 48)), "d2t is missing"),
    "a head of another size": (
        both(config(draft_vocab_size=40), tensors(lambda w: w.update(d2t=torch.arange(40)))),
        r"lm_head.weight has shape \[97, 48\], expected \[40, 48\]",
    ),
    "a small vocabulary without a head": (
        both(config(draft_vocab_size=40), without("lm_head.weight")),
        "draft_vocab_size is 40 and the target's vocab_size is 97",
    ),
    "another target": (
        verifier(architectures=["Qwen3ForCausalLM"]),
        "made for a target .Qwen3ForCausalLM., this one is DeepseekV3ForCausalLM",
    ),
    "a multimodal target's": (
        verifier(architectures=["KimiK25ForConditionalGeneration"]),
        "made for a target .KimiK25ForConditionalGeneration., this one is DeepseekV3ForCausalLM",
    ),
    "no mask token": (config(speculators_model_type="peagle"), "needs a mask_token_id"),
    "mask token": (
        config(speculators_model_type="peagle", mask_token_id=97),
        "mask_token_id is 97, the target's vocab_size is 97",
    ),
    "no masked feature": (config(**PEAGLE), r"mask_hidden is missing .*\[144\]"),
    **{
        f"speculators: {kind}": (config(speculators_model_type=kind), f"drafts by {kind}; the embedded engine drafts")
        for kind in ("dflash", "dspark", "mtp")
    },
    **{
        f"speculators: {kind}": (config(speculators_model_type=kind), f"speculators_model_type is {kind!r}, not one of")
        for kind in ("medusa", "mlp_speculator", "hass", None)
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_drafter(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    path = write_drafter(tmp_path / "drafter")
    change(path)
    refused(write_target(tmp_path / "target"), path, message)


def refused(target: Path, drafter: Path | str, message: str) -> None:
    """The engine refuses the pair with one error that names the drafter's folder."""
    with pytest.raises(CheckpointError) as caught:
        load_core(target, drafter, progress=_no_weights_are_read, draft_tokens=2)
    assert re.search(message, caught.value.message), caught.value.message
    assert str(target if drafter == "mtp" else drafter) in caught.value.message


def _no_weights_are_read(done: int, total: int) -> None:
    pytest.fail("weights were read before the refusal")


BAD_PLAIN: dict[str, tuple[dict[str, Any], Change, str]] = {
    "vocabulary": (PLAIN_DRAFTER, config(vocab_size=90), "vocab_size is 90, the target's vocab_size is 97"),
    "vocabulary, mla": (MLA_DRAFTER, config(vocab_size=90), "vocab_size is 90, the target's vocab_size is 97"),
    "hidden size": (MLA_DRAFTER, config(hidden_size=32), "hidden states 32 wide .*, the target's hidden_size is 48"),
    "aux layers": (
        MLA_DRAFTER,
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 29]}),
        r"\[2, 30\], the target has 3 layers",
    ),
    "no aux layers": (
        PLAIN_DRAFTER,
        config(eagle_config={"use_aux_hidden_state": False}),
        "use_aux_hidden_state is False",
    ),
    "default aux layers": (
        MLA_DRAFTER,
        config(eagle_config=None),
        "but 3 auxiliary layers of the target's hidden_size 48",
    ),
    "a multimodal target's": (
        PLAIN_DRAFTER,
        config(target_model_type="qwen2_5_vl"),
        "targets of model_type qwen2_5_vl .*, this one is DeepseekV3ForCausalLM .deepseek_v3",
    ),
    "missing tensor": (
        MLA_DRAFTER,
        without("midlayer.self_attn.kv_b_proj.weight"),
        r"self_attn.kv_b_proj.weight is missing \(expected shape \[88, 16\]\)",
    ),
    "wide latent": (
        MLA_DRAFTER,
        config(kv_lora_rank=20),
        r"kv_a_proj_with_mqa.weight has shape \[24, 96\], expected \[28, 96\]",
    ),
    "another architecture": (
        PLAIN_DRAFTER,
        config(architectures=["DFlashDraftModel"]),
        "drafts by dflash; the embedded",
    ),
}


@pytest.mark.parametrize("case", BAD_PLAIN)
def test_bad_plain_drafter(case: str, tmp_path: Path) -> None:
    base, change, message = BAD_PLAIN[case]
    path = write_drafter(tmp_path / "drafter", base=base)
    change(path)
    refused(write_target(tmp_path / "target"), path, message)


def test_vocabulary_maps(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    path = write_drafter(tmp_path / "drafter", draft_vocab_size=41)
    tensors(lambda w: w["d2t"].add_(60))(path)
    refused(target, path, "d2t points to 60 to 154, outside the target's vocabulary of 97")
    tensors(lambda w: w["d2t"].sub_(59))(path)
    refused(target, path, "d2t and t2d name different tokens")
    tensors(lambda w: w["d2t"][1:2].sub_(2))(path)
    refused(target, path, "d2t names a token of the target twice")
    tensors(lambda w: w["d2t"][1:2].add_(2))(path)
    # t2d is optional.
    both(tensors(lambda w: w["d2t"].sub_(1)), without("t2d"))(path)
    checkpoint = inspect_drafter(path, inspect_target(target))
    assert checkpoint.target_ids is not None and checkpoint.target_ids[:3].tolist() == [0, 2, 4]


def test_narrow_drafter_needs_its_own_embeddings(tmp_path: Path) -> None:
    target = inspect_target(write_target(tmp_path / "target"))
    narrow = DRAFTER["transformer_layer_config"] | {"hidden_size": 32}
    path = write_drafter(tmp_path / "drafter", transformer_layer_config=narrow, target_hidden_size=48)
    with pytest.raises(CheckpointError, match=r"embeddings, but its hidden_size is 32 and the target's is 48"):
        inspect_drafter(path, target)
    resized("embed_tokens.weight", 97, 32)(path)
    checkpoint = inspect_drafter(path, target)
    assert isinstance(checkpoint.config, Eagle3Config) and checkpoint.config.layer.hidden_size == 32
    without("lm_head.weight")(path)
    with pytest.raises(CheckpointError, match=r"head, but its hidden_size is 32 and the target's is 48"):
        inspect_drafter(path, target)


def test_missing_mtp_layers(tmp_path: Path) -> None:
    target = write_target(tmp_path / "none")
    refused(target, "mtp", "DeepseekV3ForCausalLM and its num_nextn_predict_layers is 0")
    config(num_nextn_predict_layers=1)(target)
    refused(target, "mtp", "model.layers.3.input_layernorm.weight is missing")
    refused(write_llama(tmp_path / "llama"), "mtp", "architecture is LlamaForCausalLM")
    cut = write_mtp_target(tmp_path / "cut")
    without("model.layers.3.eh_proj.weight")(cut)
    refused(cut, "mtp", r"eh_proj.weight is missing \(expected shape \[48, 96\]\)")


def test_draft_model_of_another_vocabulary(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    other = write_llama(tmp_path / "other", vocab_size=98)
    refused(target, other, "vocab_size is 98, the target's vocab_size is 97")
    without("model.norm.weight")(other)
    config(vocab_size=97)(other)
    refused(target, other, "embed_tokens.weight has shape")


def test_a_text_model_inside_a_multimodal_one(tmp_path: Path) -> None:
    """A drafter that was made for one of them does not fit the other."""
    text = described(LLAMA)
    whole = described({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": LLAMA})
    for target, other in ((whole, text), (text, whole)):
        made_for: tuple[dict[str, Any], ...] = (
            {"speculators_config": {"verifier": {"architectures": [target.architecture]}}},
            {"target_model_type": target.family},
        )
        kind = f"({target.architecture}|{target.family})"
        for changes in made_for:
            drafter = read_drafter(write(tmp_path, DRAFTER, **changes))
            drafter_config(drafter, target)
            with pytest.raises(CheckpointError, match=rf"{kind}.*this one is {other.architecture}"):
                drafter_config(drafter, other)


def test_aux_layers_and_mask_tokens(tmp_path: Path) -> None:
    target = inspect_target(write_target(tmp_path / "target"))

    def eagle3(folder: Path) -> Eagle3Config:
        checkpoint = inspect_drafter(folder, target).config
        assert isinstance(checkpoint, Eagle3Config)
        return checkpoint

    plain = eagle3(write_drafter(tmp_path / "speculators"))
    assert plain.aux_layers == (0, 1, 3) and plain.norm_before_residual
    # Lists that start with 1 count the layer that a hidden state leaves, others the layer that it enters.
    assert eagle3(write_drafter(tmp_path / "leaves", base=MLA_DRAFTER)).aux_layers == (2, 3)
    assert eagle3(write_drafter(tmp_path / "enters", base=PLAIN_DRAFTER)).aux_layers == (0, 2, 3)
    # The three names of the mask token.
    for name in ("mask_token_id", "pard_token", "ptd_token_id"):
        changes = {"architectures": ["PEagleDraftModel"], name: 4}
        assert eagle3(write_drafter(tmp_path / name, base=PLAIN_DRAFTER, **changes)).mask_token_id == 4


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the shared data is not here")
def test_published_configs(tmp_path: Path) -> None:
    """Drafters of real targets, whose shapes stand in for them."""
    for name, hidden, layers, vocab, aux in (
        ("torchspec/kimi_k25_eagle3_mla.json", 7168, 61, 163840, (2, 30, 58)),
        ("torchspec/kimi_k25_eagle3.json", 7168, 61, 163840, (2, 30, 58)),
        ("torchspec/qwen3_8b_eagle3_mla.json", 4096, 36, 151936, (2, 18, 33)),
        ("specforge/qwen3-30B-A3B-eagle3.1.json", 2048, 48, 151936, (2, 24, 45)),
        ("specforge/deepseek-v3-671b-eagle3.json", 7168, 61, 129280, (2, 30, 58)),
        ("specforge/gpt-oss-20B-eagle3.json", 2880, 24, 201088, (2, 12, 22)),
    ):
        shutil.copy(CONFIGS / name, tmp_path / "config.json")
        target = described(LLAMA | {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab})
        config = drafter_config(read_drafter(str(tmp_path)), target)
        assert isinstance(config, Eagle3Config) and config.aux_layers == aux
