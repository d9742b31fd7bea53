"""Embeddings, rerank and transcriptions: requests that an engine gets, and responses that a client gets, as they are.

Keys and limits hold. Of a body nothing is read but the name of the model, which becomes the engine's own.
"""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dovetail.errors import EngineError, InvalidRequest, NotOffered
from dovetail.gateway.http.endpoint import Serving, account_of, named_model, while_connected
from dovetail.gateway.limits.bodies import Body
from dovetail.gateway.models import Relay

_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?')
_MULTIPART = "multipart/form-data"
#: The most fields of a form, and the most bytes of the headers of one: what is in them is searched on the event loop.
_MOST_FIELDS, _HEADER_BYTES = 256, 8192


def passed_routes(serving: Serving) -> list[Route]:
    """The paths that are passed through."""
    return [
        Route("/v1/embeddings", PassedEndpoint("embeddings", serving), methods=["POST"]),
        Route("/v1/rerank", PassedEndpoint("rerank", serving), methods=["POST"]),
        Route("/v1/audio/transcriptions", PassedEndpoint("transcriptions", serving), methods=["POST"]),
    ]


class PassedEndpoint:
    """The endpoint of one kind of request that is passed through, as an ASGI app."""

    def __init__(self, passed: str, serving: Serving) -> None:
        self._passed = passed
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, account = Request(scope, receive), account_of(scope)
        multipart = self._passed == "transcriptions"
        kind = (_MULTIPART, self._serving.settings.picture_body_bytes) if multipart else ()
        self._serving.draining.check()
        with suppress(ClientDisconnect):
            async with self._serving.bodies.read(request, *kind) as body:
                content_type = request.headers["content-type"]
                if multipart:
                    start, end = _model_in(body.data, content_type)
                    name = body.data[start:end].decode(errors="replace")
                    served = self._serving.models.find(name, account)
                    with served.in_use():
                        relay = served.relay(self._passed)
                        data = body.data[:start] + relay.model.encode() + body.data[end:]
                        await while_connected(receive, self._pass(relay, data, content_type, scope, send))
                    return
                served = await named_model(self._serving, body, account)
                with served.in_use():
                    relay = served.relay(self._passed)
                    data = _renamed(body, relay.model)
                    await while_connected(receive, self._pass(relay, data, content_type, scope, send))

    async def _pass(self, relay: Relay, data: bytes, content_type: str, scope: Scope, send: Send) -> None:
        path = scope["path"]
        status, media_type, retry_after, body = await relay.passed(path, data, content_type)
        if status in (404, 405):
            raise NotOffered(f"the engine of this model has no {path}", param="model")
        if status in (401, 403):
            raise _private("the engine does not accept the API key: engine_api_key_file names the file that holds it")
        if (account := account_of(scope)) is not None:
            account.use(_tokens(body))
        headers = {"content-type": media_type, "content-length": str(len(body)), "retry-after": retry_after}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if value is not None]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})


def _private(message: str) -> EngineError:
    error = EngineError(message)
    error.private = True
    return error


def _renamed(body: Body, model: str) -> bytes:
    """The body with the engine's own name of the model."""
    fields = msgspec.json.decode(body.data, type=dict[str, msgspec.Raw])
    if msgspec.json.decode(fields["model"]) == model:
        return body.data
    return msgspec.json.encode({**fields, "model": model})


def _model_in(body: bytes, content_type: str) -> tuple[int, int]:
    """Where a form has the name of the model. Raises `InvalidRequest`. https://www.rfc-editor.org/rfc/rfc7578"""
    boundary = _BOUNDARY.search(content_type)
    delimiter = b"--" + boundary[1].encode("latin-1") if boundary is not None else b""
    at = body.find(delimiter) if delimiter else -1
    for _ in range(_MOST_FIELDS):
        start = body.find(b"\r\n\r\n", at, at + len(delimiter) + _HEADER_BYTES) if at >= 0 else -1
        end = body.find(b"\r\n" + delimiter, start) if start >= 0 else -1
        if end < 0:
            break
        if any(map(_names_model, body[at:start].split(b"\r\n"))):
            return start + 4, end
        at = end + 2
    raise InvalidRequest("the form has no field model", param="model")


def _names_model(header: bytes) -> bool:
    """Whether a header of a field says that it is the model."""
    name, _, words = header.partition(b":")
    is_name = name.strip().lower() == b"content-disposition"
    return is_name and any(word.strip() in (b"name=model", b'name="model"') for word in words.split(b";"))


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Response(msgspec.Struct):
    usage: _Usage | None = None


def _tokens(body: bytes) -> int:
    """The tokens that a response says it took."""
    try:
        usage = msgspec.json.decode(body, type=_Response).usage
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return 0 if usage is None else max(0, usage.total_tokens)
