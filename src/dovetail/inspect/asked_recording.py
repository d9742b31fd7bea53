"""Sends a request to a server that records it, and fetches the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from dovetail.client.answer import mapping
from dovetail.client.endpoint import error_text, merged
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import Reply, Transport
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import Recording

T = TypeVar("T")

#: How long the server's recording is waited for after the answer, in seconds, and how often it is looked for.
_WAIT_S, _TRIES = 0.1, 60
_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "chat": "/v1/chat/completions",
        "messages": "/v1/messages",
        "responses": "/v1/responses",
        "completions": "/v1/completions",
    }
)


def api_of(body: Mapping[str, Any]) -> str | None:
    """The API of a request, by its fields; None: no API has them. A body that two of them take is a chat completion."""
    if "input" in body:
        return "responses"
    if "prompt" in body:
        return "completions"
    if "messages" not in body:
        return None
    tools = body.get("tools")
    schemas = [tool for tool in (tools if isinstance(tools, list) else ()) if "input_schema" in mapping(tool)]
    return "messages" if schemas or "system" in body or "stop_sequences" in body else "chat"


class Asker:
    """Asks the endpoint at `url`."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = url

    async def recording(self, request: Mapping[str, Any], api: str) -> Recording:
        """The recording of `request`, which is sent to `api` now, and not streamed. Raises `InvalidRequest`."""
        body = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
        if not body.get("model"):
            body["model"] = await self._model()
        if (await self._send("GET", "/inspect/server")).status != 200:
            raise InvalidRequest(f"{self._url} does not run with `serve --record`, or takes another key")
        body = merged(body, {"dovetail": {"recording": True}})
        answer = self._decoded(await self._send("POST", _PATHS[api], body), _Identified)
        return await self._recorded(answer.id)

    async def _model(self) -> str:
        models = self._decoded(await self._send("GET", "/v1/models"), _Models).data
        if len(models) != 1:
            raise InvalidRequest(f"{self._url} serves {len(models)} models: name one in the request's `model`")
        return models[0].id

    async def _recorded(self, id: str) -> Recording:
        """The server's recording of the answer `id`, which it writes after the answer."""
        for _ in range(_TRIES):
            listing = self._decoded(await self._send("GET", "/inspect/recordings"), _Listing)
            name = next((each.name for each in listing.recordings if each.id == id), None)
            if name is not None:
                shown = self._decoded(await self._send("GET", f"/inspect/recordings/{name}"), _Shown)
                return msgspec.structs.replace(shown.recording, request=msgspec.Raw(shown.request.encode()))
            await asyncio.sleep(_WAIT_S)
        raise InvalidRequest(f"{self._url} wrote no recording of the answer {id}; its log says why")

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        try:
            return await self._transport.send(method, path, None if body is None else msgspec.json.encode(body))
        except NotTested as error:
            raise InvalidRequest(f"{self._url}: {error}") from error

    def _decoded(self, reply: Reply, type: type[T]) -> T:
        if reply.status != 200:
            raise InvalidRequest(f"{self._url} answered {reply.status}: {error_text(reply)}")
        try:
            return msgspec.json.decode(reply.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self._url} answered with something else than was expected: {error}") from error


class _Identified(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Identified] = []


class _Line(msgspec.Struct):
    name: str
    id: str = ""


class _Listing(msgspec.Struct):
    recordings: list[_Line]


class _Shown(msgspec.Struct):
    request: str
    recording: Recording
