"""`POST /v1/chat/completions/render`, `/tokenize` and `/detokenize`: prompts and tokens without an answer.

The bodies of the last two are vLLM's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from dovetail.errors import InvalidRequest
from dovetail.formats.prompts.history import Repair
from dovetail.gateway.apis.chat_request import ChatRequest, check, decode, turn_request
from dovetail.gateway.apis.completion_request import RawExtension
from dovetail.gateway.apis.pictures import Sees, blind
from dovetail.gateway.apis.request_body import decode_body
from dovetail.gateway.http.endpoint import Reply
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.records.memory import Tenant
from dovetail.gateway.turn.raw_prompt import check_tokens
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn_request import RawPrompt, TurnRequest
from dovetail.tokens import Tokenizer

Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class RenderedSegment(msgspec.Struct, frozen=True):
    text: str
    control: bool


class RenderedRepairs(msgspec.Struct, frozen=True):
    """The response's `dovetail` field."""

    repairs: tuple[Repair, ...]


class RenderedPrompt(msgspec.Struct, frozen=True):
    """A prompt as text and as token ids. `segments` divides the text into control tokens and the texts between."""

    model: str
    prompt: str
    token_ids: tuple[int, ...]
    count: int
    segments: tuple[RenderedSegment, ...]
    dovetail: RenderedRepairs


class ChatRender:
    """The prompt of a chat completion, whose body the request has."""

    def __init__(self, body: bytes, _: Account | None = None) -> None:
        self._request = decode(body)
        self.model = self._request.model

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        request = turn_request(self._request, sees=lambda: runner.sees)
        rendered = runner.render(replace(request, tenant=tenant))
        shown = RenderedPrompt(
            self.model,
            rendered.prompt.text,
            rendered.ids,
            len(rendered.ids),
            tuple(RenderedSegment(str(text), control) for text, control in rendered.prompt.segments),
            RenderedRepairs(rendered.repairs),
        )
        return Reply(msgspec.json.encode(shown), rendered)


class TokenizeRequest(ChatRequest, frozen=True, kw_only=True):
    """Either `prompt`, or the fields of a chat completion. `model` may be left out."""

    model: str = ""
    messages: list[object] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    dovetail: RawExtension | None = None


class Tokens(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[Token]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


class Tokenize:
    """The token ids of a text, or of the prompt for messages."""

    def __init__(self, body: bytes, _: Account | None = None, *, sees: Sees = blind) -> None:
        self._sees = sees
        self._request = decode_body(_TOKENIZE, body)
        self.model = self._request.model or None
        if (self._request.prompt is None) == (self._request.messages is None):
            raise InvalidRequest("set one of prompt and messages", param="prompt")
        self._turn_request = self._checked()

    def _checked(self) -> TurnRequest:
        request = self._request
        extension = request.dovetail or RawExtension()
        if request.prompt is not None:
            prefix = request.add_special_tokens is not False
            return TurnRequest(id="", prompts=(RawPrompt(request.prompt, prefix, bool(extension.control_tokens)),))
        if request.add_special_tokens:
            raise InvalidRequest("the prompt of messages has its own special tokens", param="add_special_tokens")
        if extension.control_tokens is not None:
            raise InvalidRequest("control_tokens is for a prompt, not for messages", param="dovetail.control_tokens")
        check(request)
        return turn_request(request, sees=self._sees)

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        rendered = runner.render(replace(self._turn_request, tenant=tenant))
        strings = self._request.return_token_strs
        shown = Tokens(
            len(rendered.ids),
            runner.context,
            rendered.ids,
            _strings(rendered.ids, runner.tokenizer) if strings else None,
        )
        return Reply(msgspec.json.encode(shown), rendered)


class Detokenize:
    """The text of token ids, with the literals of control tokens."""

    def __init__(self, body: bytes, _: Account | None = None) -> None:
        request = decode_body(_DETOKENIZE, body)
        self.model = request.model
        self._tokens = request.tokens

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        check_tokens(self._tokens, runner.tokenizer, "tokens")
        return Reply(msgspec.json.encode(Detokenized(runner.tokenizer.decode(self._tokens))))


def _strings(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[str, ...]:
    return tuple(tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids)
