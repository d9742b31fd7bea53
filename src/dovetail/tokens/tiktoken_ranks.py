"""A `tiktoken.model` rank file beside a `tokenizer_config.json` with its control tokens: Kimi's layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dovetail.checkpoints.tokenizer_files import read_tokenizer_config
from dovetail.errors import CheckpointError
from dovetail.tokens.tokenizer import Tokenizer

#: How Kimi's own tokenizer splits text: Han runs, then words, numbers of up to 3 digits, marks.
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
#: The same name of a file stands for other splittings too (Kimi-Audio's is Qwen's), and only the checkpoint's own code
#: says which. So it is looked at whose code that is.
_KIMI_CLASS = "tokenization_kimi.TikTokenTokenizer"
_RESERVED = 256  # control tokens behind the ranks; those that the configuration does not name are called by their ids

# As Kimi's own tokenizer: no more characters at once, and no longer runs of white space or of anything else. The
# library overflows its stack on some that are longer.
_MOST, _LONGEST_RUN = 400_000, 25_000
_RUN = re.compile(r"\s+|\S+")


class TiktokenTokenizer(Tokenizer):
    """Raises `CheckpointError` where the splitting is not Kimi's, or not known."""

    def __init__(self, path: Path) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        config_path = path.with_name("tokenizer_config.json")
        if not config_path.is_file():
            raise CheckpointError(f"{config_path} is missing: the control tokens of {path.name} are declared there")
        config = read_tokenizer_config(path.parent)
        own = (config.auto_map or {}).get("AutoTokenizer") or config.tokenizer_class
        name = own[0] if isinstance(own, list) else own
        if not str(name).endswith(_KIMI_CLASS):  # in front of it there may be a repository's name
            raise CheckpointError(
                f"{path}: how the tokenizer class {name} splits text is not known; of rank files, those of Kimi's "
                f"{_KIMI_CLASS} are supported (a tokenizer.json says itself how it splits)"
            )
        ranks = load_tiktoken_bpe(str(path))
        declared = {i: token.content for i, token in config.added_tokens_decoder.items()}
        reserved = {i: f"<|reserved_token_{i}|>" for i in range(len(ranks), len(ranks) + _RESERVED)}
        self.control = {literal: i for i, literal in sorted((reserved | declared).items())}
        self._library = tiktoken.Encoding(path.stem, pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens={})
        self.vocab_size = max(self.control.values()) + 1

    def _encode(self, text: str) -> list[int]:
        if len(text) <= _LONGEST_RUN:
            return self._library.encode_ordinary(text)
        return [token for part in _parts(text) for token in self._library.encode_ordinary(part)]

    def _bytes(self, token: int) -> bytes:
        try:
            return self._library.decode_single_token_bytes(token)
        except KeyError:
            return b""


def _parts(text: str) -> Iterator[str]:
    for start in range(0, len(text), _MOST):
        chunk = text[start : start + _MOST]
        begun = 0
        for run in _RUN.finditer(chunk):
            for cut in range(run.start() + _LONGEST_RUN, run.end(), _LONGEST_RUN):
                yield chunk[begun:cut]
                begun = cut
        yield chunk[begun:]
