"""Text to token ids and back: `Tokenizer`, `Prompt`, `Detokenizer` and `StopStrings`.

The rule of this package: text of a user is encoded without control tokens, so that it can never become one. The one
exception is `raw_prompt(…, controls=True)`, for a client that writes whole prompts.
"""

from pathlib import Path

from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.checkpoints.gguf.header import is_gguf
from dovetail.errors import CheckpointError
from dovetail.tokens.hugging_face import HuggingFaceTokenizer
from dovetail.tokens.prompt import CUT, PicturePlace, Prompt, Segment, TokenSpan
from dovetail.tokens.raw_text import control_literals_in, raw_prompt
from dovetail.tokens.streaming import Detokenizer, StopStrings
from dovetail.tokens.tiktoken_ranks import TiktokenTokenizer
from dovetail.tokens.tokenizer import Tokenizer

__all__ = [
    "CUT",
    "Detokenizer",
    "PicturePlace",
    "Prompt",
    "Segment",
    "StopStrings",
    "TokenSpan",
    "Tokenizer",
    "control_literals_in",
    "raw_prompt",
    "tokenizer",
]


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder or GGUF file (or a `tokenizer.json` or `tiktoken.model` itself).

    Raises `CheckpointError` when there is none or its kind is not supported.
    """
    path = Path(gguf_folder(path)) if is_gguf(path) else Path(path)
    candidates = [path] if path.is_file() else [path / "tokenizer.json", path / "tiktoken.model"]
    for candidate in candidates:
        if candidate.is_file():
            kind = TiktokenTokenizer if candidate.suffix == ".model" else HuggingFaceTokenizer
            try:
                return kind(candidate)
            except CheckpointError:
                raise
            except Exception as error:  # the libraries raise no type of their own for a broken file
                raise CheckpointError(f"{candidate} cannot be read as a tokenizer: {error}") from error
    raise CheckpointError(f"no tokenizer.json or tiktoken.model in {path}")
