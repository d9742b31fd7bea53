"""Between text and token ids: `Tokenizer`, `Prompt` (control and text segments), `Detokenizer`, `StopStrings`.

The one rule of this room: text that a user wrote is encoded with control tokens off, so it can never become one.
"""

from dovetail.tokens.load import tokenizer
from dovetail.tokens.prompt import CUT, Prompt, Segment
from dovetail.tokens.streaming import Detokenizer, StopStrings, held_back
from dovetail.tokens.tokenizer import Tokenizer

__all__ = ["CUT", "Detokenizer", "Prompt", "Segment", "StopStrings", "Tokenizer", "held_back", "tokenizer"]
