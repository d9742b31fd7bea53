"""Kimi's tokenizer: the rank file `tiktoken.model`, and its control tokens in `tokenizer_config.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dovetail.checkpoints.tokenizer_files import read_tokenizer_config
from dovetail.errors import CheckpointError
from dovetail.tokens.tokenizer import Tokenizer

#: The regex with which Kimi's own tokenizer splits text: runs of Han, then words, numbers of up to 3 digits, marks.
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
#: Other models split text differently and name their file the same (Kimi-Audio splits like Qwen). The regex is in the
#: checkpoint's own code, so the name of its tokenizer class tells which one it is.
_KIMI_CLASS = "tokenization_kimi.TikTokenTokenizer"
_RESERVED = 256  # control tokens after the ranks; those that the configuration does not name are named by their ids

# As in Kimi's own tokenizer: the most characters in one call of the library, and in one run of whitespace or of other
# characters. The library overflows its stack on some longer runs.
_MAX_LENGTH, _MAX_RUN = 400_000, 25_000
_RUN = re.compile(r"\s+|\S+")


class TiktokenTokenizer(Tokenizer):
    """Raises `CheckpointError` if the checkpoint's tokenizer class is not Kimi's."""

    def __init__(self, path: Path) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        config_path = path.with_name("tokenizer_config.json")
        if not config_path.is_file():
            raise CheckpointError(f"{config_path} is missing: the control tokens of {path.name} are declared there")
        config = read_tokenizer_config(path.parent)
        declared_class = (config.auto_map or {}).get("AutoTokenizer") or config.tokenizer_class
        name = declared_class[0] if isinstance(declared_class, list) else declared_class
        if not str(name).endswith(_KIMI_CLASS):  # a repository's name may precede it
            raise CheckpointError(
                f"{path}: how the tokenizer class {name} splits text is not known. Rank files are supported for Kimi's "
                f"{_KIMI_CLASS} only; a tokenizer.json contains its own rules and is supported for any model"
            )
        ranks = load_tiktoken_bpe(str(path))
        declared = {i: token.content for i, token in config.added_tokens_decoder.items()}
        reserved = {i: f"<|reserved_token_{i}|>" for i in range(len(ranks), len(ranks) + _RESERVED)}
        self.control = {literal: i for i, literal in sorted((reserved | declared).items())}
        self._library = tiktoken.Encoding(path.stem, pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens={})
        self.vocab_size = max(self.control.values()) + 1

    def _encode(self, text: str) -> list[int]:
        if len(text) <= _MAX_RUN:
            return self._library.encode_ordinary(text)
        return [
            token
            for part in split_long_text(text, _MAX_LENGTH, _MAX_RUN)
            for token in self._library.encode_ordinary(part)
        ]

    def _bytes(self, token: int) -> bytes:
        try:
            return self._library.decode_single_token_bytes(token)
        except KeyError:
            return b""


def split_long_text(text: str, max_length: int, max_run: int) -> Iterator[str]:
    """The parts of a text of at most `max_length` characters, in which no run is longer than `max_run`."""
    for start in range(0, len(text), max_length):
        chunk = text[start : start + max_length]
        start_of_part = 0
        for run in _RUN.finditer(chunk):
            for cut in range(run.start() + max_run, run.end(), max_run):
                yield chunk[start_of_part:cut]
                start_of_part = cut
        yield chunk[start_of_part:]
