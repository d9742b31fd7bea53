"""Text to token ids and back: `Tokenizer`, `Prompt`, `Detokenizer` and `StopStrings`.

The rule of this package: text of a user is encoded without control tokens, so that it can never become one.
"""

from dovetail.tokens.load import tokenizer
from dovetail.tokens.prompt import CUT, Prompt, Segment
from dovetail.tokens.streaming import Detokenizer, StopStrings
from dovetail.tokens.tokenizer import Tokenizer

__all__ = ["CUT", "Detokenizer", "Prompt", "Segment", "StopStrings", "Tokenizer", "tokenizer"]
