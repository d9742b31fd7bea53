"""Text to token ids and back: `Tokenizer`, `Prompt`, `Detokenizer` and `StopStrings`.

The rule of this package: text of a user is encoded without control tokens, so that it can never become one. The one
exception is `raw_prompt(…, controls=True)`, for a client that writes whole prompts.
"""

from dovetail.tokens.load import tokenizer
from dovetail.tokens.prompt import CUT, Prompt, Segment, TokenSpan
from dovetail.tokens.raw_text import control_literals_in, raw_prompt
from dovetail.tokens.streaming import Detokenizer, StopStrings
from dovetail.tokens.tokenizer import Tokenizer

__all__ = [
    "CUT",
    "Detokenizer",
    "Prompt",
    "Segment",
    "StopStrings",
    "TokenSpan",
    "Tokenizer",
    "control_literals_in",
    "raw_prompt",
    "tokenizer",
]
