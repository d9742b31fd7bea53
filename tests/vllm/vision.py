"""Tiny checkpoints of random weights with two vision architectures: Qwen2.5-VL and Gemma 3.

`python -m tests.vllm.vision qwen2_5_vl FOLDER` writes one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_QWEN = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
#: The id of Qwen's place for a picture; a token for each byte comes before.
QWEN_PICTURE = 256 + _QWEN.index("<|image_pad|>")
_GEMMA = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
)
#: Tokens with markup that are no special tokens, so a decoded text has them.
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_SIZE = 288
#: The chat template of both, which shows pictures in messages of every role.
_TURNS = """
{%- if tools %}{{ open }}system
Call a function as <tool_call>
{"name": "NAME", "arguments": {}}
</tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ close }}
{% endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ open }}user
<tool_response>
{% elif message.role == 'assistant' %}{{ open }}{{ model }}
{% else %}{{ open }}{{ message.role }}
{% endif %}
    {%- if message.content is string %}{{ message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}{{ picture }}{% else %}{{ part.text }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
    {%- endfor %}
    {%- if message.role == 'tool' %}
</tool_response>
    {%- endif %}{{ close }}
{% endfor %}
{%- if add_generation_prompt %}{{ open }}{{ model }}
{% endif %}"""
_TEXT: dict[str, Any] = {
    "vocab_size": _SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
}
_IMAGES: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "rescale_factor": 1 / 255,
    "resample": 2,
}


def letters() -> Any:
    """A tokenizer with a token for each byte, and no control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _tokenizer(special: tuple[str, ...], **named: Any) -> Any:
    """`letters` with control tokens behind them."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokenizer = letters()
    tokenizer.add_special_tokens([AddedToken(literal, special=True, normalized=False) for literal in special])
    tokenizer.add_tokens([AddedToken(literal, normalized=False) for literal in _MARKUP])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def qwen2_5_vl(folder: Path, template: str | None = None) -> Path:
    """Qwen2.5-VL, with a chat template of ours or with `template`."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = _tokenizer(_QWEN, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = {literal: tokenizer.convert_tokens_to_ids(literal) for literal in _QWEN}
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    ends = {"eos_token_id": ids["<|im_end|>"], "bos_token_id": 256, "pad_token_id": 256}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128}
    vision |= {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112}
    config = Qwen2_5_VLConfig(
        text_config=_TEXT | ends | {"rope_parameters": rope},
        vision_config=vision | {"fullatt_block_indexes": [1], "initializer_range": 0.3},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    pixels = {"min_pixels": 4 * 28 * 28, "max_pixels": 64 * 28 * 28}
    sizes = {"shortest_edge": pixels["min_pixels"], "longest_edge": pixels["max_pixels"]}
    images = _IMAGES | pixels | {"size": sizes, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    if template is None:
        picture = "<|vision_start|><|image_pad|><|vision_end|>"
        template = _turns(open="<|im_start|>", close="<|im_end|>", picture=picture, model="assistant")
    _write(folder, Qwen2_5_VLForConditionalGeneration, config, tokenizer, template, ids["<|im_end|>"])
    own = {"processor_class": "Qwen2_5_VLProcessor"}
    _json(folder / "preprocessor_config.json", images | own | {"image_processor_type": "Qwen2VLImageProcessor"})
    _json(folder / "video_preprocessor_config.json", images | own | {"video_processor_type": "Qwen2VLVideoProcessor"})
    return folder


def gemma3(folder: Path, template: str | None = None) -> Path:
    """Gemma 3, with a chat template of ours or with `template`."""
    from safetensors.torch import load_file, save_file
    from tokenizers import AddedToken
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = _tokenizer(_GEMMA, eos_token="<eos>", bos_token="<bos>", pad_token="<pad>", extra_special_tokens=named)
    # vLLM looks them up, to join them with the line breaks around a picture.
    tokenizer.add_tokens([AddedToken("\n" * count, normalized=False) for count in range(1, 5)])
    ids = {literal: tokenizer.convert_tokens_to_ids(literal) for literal in _GEMMA}
    ends = {"eos_token_id": ids["<eos>"], "bos_token_id": ids["<bos>"], "pad_token_id": ids["<pad>"]}
    text = _TEXT | ends | {"head_dim": 32, "sliding_window": 1024, "layer_types": ["full_attention"] * 2}
    vision = {"model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128}
    vision |= {"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "patch_size": 14}
    config = Gemma3Config(
        text_config=text | {"query_pre_attn_scalar": 2},
        vision_config=vision,
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
        eos_token_id=[ids["<eos>"], ids["<end_of_turn>"]],
    )
    if template is None:
        words = {"open": "<start_of_turn>", "close": "<end_of_turn>", "picture": "<start_of_image>", "model": "model"}
        template = "{{ bos_token }}" + _turns(**words)
    _write(folder, Gemma3ForConditionalGeneration, config, tokenizer, template, [ids["<eos>"], ids["<end_of_turn>"]])
    # As published checkpoints call them; transformers writes other names since version 5.
    weights = load_file(folder / "model.safetensors")
    weights = {name.replace("vision_tower.", "vision_tower.vision_model."): it for name, it in weights.items()}
    # New models have zeros here, and would see nothing; and with large embeddings they repeat their last token.
    weights["multi_modal_projector.mm_input_projection_weight"] = torch.randn(64, 128) * 0.3
    weights["language_model.model.embed_tokens.weight"] *= 0.05
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    images = _IMAGES | {"size": {"height": 56, "width": 56}, "do_pan_and_scan": None, "image_seq_length": 4}
    _json(folder / "preprocessor_config.json", images | {"image_processor_type": "Gemma3ImageProcessor"})
    _json(folder / "processor_config.json", {"processor_class": "Gemma3Processor", "image_seq_length": 4})
    return folder


def _turns(**words: str) -> str:
    return "".join(f"{{%- set {name} = '{word}' %}}" for name, word in words.items()) + _TURNS


def _write(folder: Path, kind: Any, config: Any, tokenizer: Any, template: str, eos: int | list[int]) -> None:
    torch.manual_seed(7)
    model = kind(config).to(torch.float32)
    model.generation_config.eos_token_id = eos
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)


def _json(file: Path, fields: dict[str, Any]) -> None:
    file.write_text(json.dumps(fields))


if __name__ == "__main__":
    written: Callable[[Path], Path] = {"qwen2_5_vl": qwen2_5_vl, "gemma3": gemma3}[sys.argv[1]]
    print(written(Path(sys.argv[2])))
