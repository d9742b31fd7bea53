"""The demo tokenizer: byte-level BPE trained on the corpus, with Kimi's control tokens as added tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dovetail.formats.families.kimi_k2 import KimiK25
from training.corpus import sample

VOCAB = 3072
# Kimi's names, in Kimi's order. The tool and thinking tokens are not `special` there, so they are not here.
SPECIAL = (
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "[UNK]",
    "[PAD]",
)
MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")
MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
)
# Words with the space, underscore or quote before them, single digits, runs of marks: so a value costs the same tokens
# in a sentence and in JSON wherever possible.
_SPLIT = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def train(out: Path, conversations: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into `out`."""
    fmt = KimiK25()

    def texts() -> list[str]:
        pieces: list[str] = []
        for seed in range(conversations):
            s = sample(seed)
            for prompt in (
                fmt.render(s.messages[:-1], s.tools, thinking=s.thinking),
                fmt.write(s.answer_at(len(s.messages) - 1), thinking=s.thinking),
            ):
                pieces.extend(segment.text for segment in prompt.segments if not segment.control)
        return pieces

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    controls = (*SPECIAL, *MEDIA, *MARKERS)
    bpe.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=VOCAB - len(controls), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    bpe.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (*SPECIAL, *MEDIA)])
    bpe.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKERS])
    out.mkdir(parents=True, exist_ok=True)
    bpe.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
