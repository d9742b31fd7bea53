"""The memory of a GPU, compared with what engines printed, and laws for every layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import Target, read_target
from dovetail.plan import hardware, memory
from dovetail.plan.layers import Setting
from dovetail.plan.memory import Budget, Layout
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K2,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    QWEN3_NEXT,
    Config,
    write,
)

Targets = Callable[[Config], Target]
FP8 = "fp8"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    looked: dict[str, Target] = {}

    def look(config: Config) -> Target:
        key = json.dumps(config)
        if key not in looked:
            looked[key] = read_target(write(tmp_path_factory.mktemp("target"), config))
        return looked[key]

    return look


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], Drafter]:
    return lambda config: read_drafter(write(tmp_path_factory.mktemp("drafter"), config))


def on(gpu: str, model: Target, draft: Drafter | None = None, **fields: Any) -> Budget:
    return memory.budget(model, draft, Layout(**fields), hardware.parse(gpu).gpu)


# Per layer and token: 1,152 bytes in bf16 (PEERS.md, for Kimi and DeepSeek); in FP8 576 for rows of one byte an element
# (vLLM 0.33: TRITON_MLA), 656 for the packed rows of sparse attention, with 132 for its indexer's keys.
ROWS: list[tuple[Config, str, int, float]] = [
    (KIMI_K2, "auto", 8, 61 * 1152),
    (KIMI_K2, "bfloat16", 1, 61 * 1152),
    (KIMI_K2, FP8, 8, 61 * 576),
    (DEEPSEEK_V32, "auto", 8, 61 * (1152 + 132)),
    (DEEPSEEK_V32, FP8, 8, 61 * (656 + 132)),
    (DEEPSEEK_V32, "nvfp4", 8, 61 * (352 + 132)),
    (QWEN3_8B, "auto", 1, 36 * 2 * 8 * 128 * 2),
    (QWEN3_8B, "nvfp4", 1, 36 * 2 * 8 * 128 * 0.5625),
    (QWEN3_8B, "fp8_e4m3", 1, 36 * 2 * 8 * 128),
    (QWEN3_8B, "auto", 4, 36 * 2 * 2 * 128 * 2),
    (QWEN3_235B, "auto", 8, 94 * 2 * 1 * 128 * 2),  # four key-value heads on eight GPUs: one each, repeated
    (QWEN3_8B | {"full_attention_interval": 4}, "auto", 1, 9 * 2 * 8 * 128 * 2),  # linear layers keep no tokens
]


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_cache_per_token_and_gpu(made: Targets, row: int) -> None:
    config, dtype, tensor, expected = ROWS[row]
    model = made(config)
    layout = Layout(tensor=tensor, kv_dtype=dtype)
    assert memory.cache_per_token(model.attention, model.layers, model.dtype, layout) == expected


def test_tensor_parallelism_repeats_a_latent_cache_and_decode_context_parallelism_divides_it(made: Targets) -> None:
    kimi = made(KIMI_K25)
    alone = on("8x H200", kimi, tensor=8).per_token
    assert alone == on("8x H200", kimi, tensor=4).per_token
    for degree in (2, 4, 8):
        assert on("8x H200", kimi, tensor=8, decode_context=degree).per_token == pytest.approx(61 * 1152 / degree)


def test_kimi_k2_thinking_on_eight_h200_as_vllm_printed_it(made: Targets) -> None:
    """https://github.com/vllm-project/recipes, moonshotai/Kimi-K2-Think.md: 46.80 GiB for 715,072 tokens at TP8,
    5,721,088 with DCP8; vLLM 0.11, whose gpu_memory_utilization was 0.9 and whose largest step had 8,192 tokens.
    """
    kimi = made(KIMI_K2)
    eight = on("H200", kimi, tensor=8, utilization=0.9)
    assert 46.80 * memory.GIB / (eight.per_token or 0) == pytest.approx(715_072, rel=1e-3)
    assert eight.room == pytest.approx(46.80 * memory.GIB, rel=0.02)
    assert eight.tokens == pytest.approx(715_072, rel=0.02)
    sharded = on("H200", kimi, tensor=8, decode_context=8, utilization=0.9)
    assert sharded.tokens == pytest.approx(5_721_088, rel=0.02)


def test_qwen3_8b_on_one_5090_as_vllm_printed_it(made: Targets) -> None:
    """Found in a public log: weights 15.27 GiB, 89,040 tokens of 147,456 bytes, at 0.92 and a context of 32,768."""
    qwen = on("RTX 5090", made(QWEN3_8B), utilization=0.92, context=32768)
    assert qwen.weights == pytest.approx(15.27 * memory.GIB, rel=0.002)
    assert qwen.per_token == 147_456
    assert qwen.tokens == pytest.approx(89_040, rel=0.03)


# Where these models are known to be served (vLLM's recipes; the Blackwell recipes of vLLM issue 40608), or cannot be.
SERVED: list[tuple[str, Config, dict[str, Any], bool]] = [
    ("H200", KIMI_K25, {"tensor": 8}, True),
    ("MI300X", KIMI_K25, {"tensor": 8}, True),
    ("GB200", KIMI_K25, {"tensor": 4}, True),
    ("96GB", KIMI_K25, {"tensor": 8, "decode_context": 4, "kv_dtype": FP8, "utilization": 0.9}, True),
    ("96GB", KIMI_K25, {"tensor": 8, "decode_context": 8, "kv_dtype": FP8, "utilization": 0.94}, True),
    ("H100", KIMI_K25, {"tensor": 8, "context": 4096}, False),
    ("H200", KIMI_K25, {"tensor": 4}, False),
    ("H200", DEEPSEEK_V32, {"tensor": 8}, True),
    ("B200", DEEPSEEK_V32, {"tensor": 8, "kv_dtype": FP8}, True),
    ("H100", DEEPSEEK_V32, {"tensor": 8}, False),
    ("H100", DEEPSEEK_V32, {"tensor": 8, "pipeline": 2}, True),
    ("L4", QWEN3_8B, {}, False),
    ("L4", QWEN3_8B, {"context": 8192}, True),
    ("L4", QWEN3_8B, {"tensor": 2}, True),
]


@pytest.mark.parametrize("row", range(len(SERVED)))
def test_known_deployments_fit_and_impossible_ones_do_not(made: Targets, row: int) -> None:
    gpu, config, fields, fits = SERVED[row]
    budget = on(gpu, made(config), **fields)
    assert budget.fits is fits
    assert fits or budget.hopeless or config is QWEN3_8B


def test_the_blackwell_recipes_hold_what_they_were_measured_with(
    made: Targets, drafts: Callable[[Config], Drafter]
) -> None:
    """The source measured 64 requests at contexts up to 64k. Those of 64k are 4.2 million tokens, which no layout of
    eight 96 GB cards holds: that figure must be of requests that share a prefix. 64 of 16k fit with DCP 8.
    """
    common: dict[str, Any] = {"tensor": 8, "kv_dtype": FP8, "max_batch": 128}
    kimi, latent = made(KIMI_K25), drafts(KIMI_EAGLE3_MLA)
    four = on("RTX PRO 6000", kimi, latent, **common, decode_context=4, utilization=0.9, max_batched_tokens=32768)
    eight = on("RTX PRO 6000", kimi, latent, **common, decode_context=8, utilization=0.9, max_batched_tokens=32768)
    assert four.fits and eight.fits
    assert 700_000 < (four.tokens or 0) < 64 * 16384 < (eight.tokens or 0) < 64 * 65536


def test_a_drafter_without_mla_has_a_whole_cache_under_decode_context_parallelism(
    made: Targets, drafts: Callable[[Config], Drafter]
) -> None:
    kimi = made(KIMI_K25)
    layout: dict[str, Any] = {"tensor": 8, "decode_context": 8, "kv_dtype": FP8, "draft_kv_dtype": "bfloat16"}
    target_alone = on("RTX PRO 6000", kimi, **layout).per_token or 0
    latent = on("RTX PRO 6000", kimi, drafts(KIMI_EAGLE3_MLA), **layout).per_token or 0
    llama = on("RTX PRO 6000", kimi, drafts(KIMI_EAGLE3), **layout).per_token or 0
    assert latent - target_alone == pytest.approx(1152 / 8)
    # 64 heads of 128, keys and values, over 8 GPUs: as much again as all 61 layers of the target.
    assert llama - target_alone == 2 * 8 * 128 * 2
    assert llama - target_alone > 0.9 * target_alone


def test_a_drafter_whole_on_every_gpu_weighs_more(made: Targets, drafts: Callable[[Config], Drafter]) -> None:
    qwen, eagle = made(QWEN3_8B), drafts(QWEN3_8B_EAGLE3)
    divided = on("H100", qwen, eagle, tensor=4)
    whole = on("H100", qwen, eagle, tensor=4, draft_tensor=1)
    assert eagle.weights is not None
    assert whole.drafter == pytest.approx(eagle.weights.bytes, rel=1e-6)
    assert divided.drafter < whole.drafter / 2
    assert (divided.per_token or 0) < (whole.per_token or 0)
    block = on("H100", qwen, drafts(QWEN3_8B_DFLASH), tensor=4)
    assert (block.per_token or 0) == (36 + 5) * 2 * 2 * 128 * 2


def test_mtp_layers_weigh_only_where_they_draft(made: Targets) -> None:
    model = made(DEEPSEEK_V32)
    without = on("H200", model, tensor=8)
    drafting = on("H200", model, mtp_drafter(model), tensor=8)
    assert without.weights == drafting.weights
    assert without.drafter == 0
    assert drafting.drafter == pytest.approx(15.4e9 / 8, rel=0.01)
    assert (drafting.per_token or 0) == pytest.approx((without.per_token or 0) * 62 / 61)


def test_experts_are_spread_over_data_parallel_gpus_and_the_rest_is_repeated(made: Targets) -> None:
    model = made(DEEPSEEK_V32)
    parts = model.weights.parts
    budget = on("H200", model, data=8)
    assert budget.weights == pytest.approx(model.weights.bytes - parts.mtp - parts.experts * 7 / 8, rel=1e-6)
    one = on("H200", model, tensor=8)
    assert (on("H200", model, tensor=8, data=2).tokens or 0) > 2 * (one.tokens or 0)


def test_text_alone_leaves_the_encoder_out_and_fp8_on_loading_halves_what_it_quantizes(made: Targets) -> None:
    kimi = made(KIMI_K25)
    spared = on("H200", kimi, tensor=8).weights - on("H200", kimi, tensor=8, language_model_only=True).weights
    assert spared == pytest.approx(kimi.weights.parts.vision / 8, abs=2)
    assert on("H200", kimi, tensor=8, quantization=FP8).weights == on("H200", kimi, tensor=8).weights
    qwen = made(QWEN3_8B)
    saved = on("H200", qwen).weights - on("H200", qwen, quantization=FP8).weights
    assert saved == pytest.approx(qwen.weights.parts.divided / 2)


def test_a_checkpoint_with_scales_for_its_cache_has_it_in_fp8(made: Targets) -> None:
    scaled = made(KIMI_K2 | {"quantization_config": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    assert on("B200", scaled, tensor=8).per_token == 61 * 576
    assert on("B200", scaled, tensor=8, kv_dtype="bfloat16").per_token == 61 * 1152


def test_windows_bound_what_a_sequence_takes(made: Targets) -> None:
    windowed = made(QWEN3_8B | {"sliding_window": 1024, "sliding_window_pattern": 6})
    short, long = on("H100", windowed, context=512), on("H100", windowed, context=32768)
    assert short.per_token == long.per_token == 6 * 4096
    assert (short.per_sequence, long.per_sequence) == (30 * 512 * 4096, 30 * 1024 * 4096)


def test_an_unknown_cache_is_not_estimated(made: Targets) -> None:
    budget = on("H100", made(QWEN3_8B | {"compress_ratios": [1, 4]}))
    assert (budget.per_token, budget.tokens, budget.sequences, budget.longest) == (None, None, None, None)
    assert budget.fits and budget.room > 0


def test_a_layout_follows_the_settings_and_has_defaults() -> None:
    settings = {
        "tensor_parallel_size": Setting(8, "command line"),
        "kv_cache_dtype": Setting("fp8", "recipe"),
        "max_batch": Setting(None, "default"),
        "port": Setting(8000, "default"),
    }
    assert memory.layout(settings) == Layout(tensor=8, kv_dtype="fp8")


DEGREES = st.sampled_from([1, 2, 4, 8])
LAYOUTS = st.builds(
    Layout,
    tensor=DEGREES,
    pipeline=DEGREES,
    data=DEGREES,
    kv_dtype=st.sampled_from(["auto", "fp8", "bfloat16"]),
    context=st.integers(1, 262144),
    utilization=st.floats(0.1, 1.0),
)
#: Targets whose layers are not all alike, with an MTP layer, which sees every token.
UNLIKE: dict[str, Config] = {
    "three of four keep a state": {},
    "listed": {"full_attention_interval": None, "layer_types": ["linear_attention", "full_attention"] * 24},
    "windows": {"full_attention_interval": None, "sliding_window": 1024, "sliding_window_pattern": 6},
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_an_mtp_layer_keeps_every_token_whatever_its_target_does(tmp_path: Path, kind: str) -> None:
    target = read_target(write(tmp_path, QWEN3_NEXT, **UNLIKE[kind]))
    alone = memory.per_token_of(target, None, Layout())
    row = 2 * 2 * 128 * 2  # keys and values of two heads, in bf16
    assert alone is not None and alone > 0
    assert memory.per_token_of(target, mtp_drafter(target), Layout()) == alone + row
    its = mtp_drafter(target).attention
    assert its is not None and (its.linear_layers, its.windowed_layers, its.window) == (0, 0, None)


@given(linear=st.integers(0, 99), windowed=st.integers(0, 99), layers=st.integers(1, 50))
def test_no_layers_never_give_room_back(made: Targets, linear: int, windowed: int, layers: int) -> None:
    odd = replace(made(QWEN3_8B).attention, linear_layers=linear, windowed_layers=windowed, window=1)
    assert (memory.cache_per_token(odd, layers, "bfloat16", Layout()) or 0) >= 0


MODELS = [KIMI_K25, DEEPSEEK_V32, QWEN3_8B, QWEN3_235B]


@given(model=st.integers(0, len(MODELS) - 1), layout=LAYOUTS, degree=DEGREES)
def test_more_of_anything_is_never_less(made: Targets, model: int, layout: Layout, degree: int) -> None:
    gpu, target = hardware.parse("H200").gpu, made(MODELS[model])
    base = memory.budget(target, None, layout, gpu)

    def changed(**fields: Any) -> Budget:
        return memory.budget(target, None, replace(layout, **fields), gpu)

    assert base.room == base.usable - base.weights - base.drafter - base.allowance
    assert changed(tensor=layout.tensor * degree).weights <= base.weights
    assert changed(pipeline=layout.pipeline * degree).weights <= base.weights
    assert changed(data=layout.data * degree).weights <= base.weights
    assert (changed(kv_dtype="fp8").tokens or 0) >= (base.tokens or 0)
    assert (changed(context=(layout.context or 1) * degree).sequences or 0) <= (base.sequences or 0)
    assert (changed(decode_context=degree).tokens or 0) >= (base.tokens or 0)
    # The reported longest context fits.
    if base.longest:
        assert memory.budget(target, None, replace(layout, context=base.longest), gpu).sequences
