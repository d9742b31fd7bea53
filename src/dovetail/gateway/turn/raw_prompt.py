"""Raw prompts: what a client wrote itself becomes token ids without a format."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.errors import InvalidRequest
from dovetail.events import Content
from dovetail.gateway.turn.turn_request import RawPrompt
from dovetail.reading import Reader, ReaderOptions
from dovetail.reading.reader import Script
from dovetail.tokens import Detokenizer, Prompt, Tokenizer, control_literals_in, raw_prompt


def prompt_of(raw: RawPrompt, tokenizer: Tokenizer) -> Prompt:
    """The prompt that `raw` is."""
    if isinstance(raw.content, str):
        return raw_prompt(raw.content, tokenizer, prefix=raw.prefix, controls=raw.controls)
    detokenizer = Detokenizer(tokenizer)
    return Prompt([*detokenizer.feed(raw.content), *detokenizer.finish()])


def prompt_text(raw: RawPrompt, tokenizer: Tokenizer) -> str:
    """The text of `raw`: as the client sent it, or as its token ids spell it."""
    return raw.content if isinstance(raw.content, str) else prompt_of(raw, tokenizer).text


def ids_of(raw: RawPrompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids of `raw`. Raises `InvalidRequest` for an id that is no token."""
    if isinstance(raw.content, str):
        return tuple(prompt_of(raw, tokenizer).ids(tokenizer))
    check_tokens(raw.content, tokenizer, raw.field)
    return raw.content


def spelled_controls(prompts: Sequence[RawPrompt], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The literals of control tokens that are ordinary text in `prompts`, each once."""
    texts = [raw.content for raw in prompts if isinstance(raw.content, str) and not raw.controls]
    return tuple(dict.fromkeys(literal for text in texts for literal in control_literals_in(text, tokenizer)))


def least_tokens(raw: RawPrompt, tokenizer: Tokenizer) -> int:
    """A lower bound of the number of tokens, which takes no tokenizing."""
    if isinstance(raw.content, str):
        return len(raw.content.encode(errors="replace")) // tokenizer.longest_token
    return len(raw.content)


def check_tokens(tokens: Sequence[int], tokenizer: Tokenizer, field: str) -> None:
    """Raise `InvalidRequest` for the first of `tokens` that is not in the vocabulary."""
    for i, token in enumerate(tokens):
        if not 0 <= token < tokenizer.vocab_size:
            raise InvalidRequest(
                f"{field}[{i}] is {token}, which is no token: ids are 0 to {tokenizer.vocab_size - 1}",
                param=f"{field}[{i}]",
            )


class RawReader(Reader):
    controls = ()

    def __init__(self) -> None:
        super().__init__(ReaderOptions(thinking=False))

    def _answer(self) -> Script[None]:
        """Read everything: a control token at the beginning is text, too."""
        return self._read()

    def _read(self) -> Script[None]:
        yield from self._value(lambda text: self._events.append(Content(text)))
