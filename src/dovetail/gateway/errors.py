"""Errors as clients see them: OpenAI's shape, and nothing that is private."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dovetail.errors import DovetailError, EngineBusy, EngineError, UnknownModel

#: Headers of an error response, by status.
_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(msgspec.Struct, frozen=True):
    error: ErrorBody


def error_json(error: DovetailError) -> bytes:
    """`error` in OpenAI's shape."""
    return msgspec.json.encode(ErrorObject(ErrorBody(error.message, error.type, error.param, error.code)))


def error_response(error: DovetailError) -> Response:
    """The response that reports `error`."""
    return _response(error_json(error), error.status, _HEADERS.get(error.status))


def public_error(error: Exception, request_id: str) -> DovetailError:
    """`error` as the client may see it: a private or unexpected error only says where the server's log has more."""
    if isinstance(error, DovetailError) and not error.private:
        return error
    if isinstance(error, EngineBusy):
        return EngineBusy("the engine takes no more requests now; try again later")
    where = f"the server's log has it under request id {request_id}"
    if isinstance(error, EngineError):
        return EngineError(f"the engine failed; {where}")
    return DovetailError(f"internal error; {where}")


def unknown_model(name: str, served: str) -> UnknownModel:
    """The error for a request that names another model than `served`."""
    return UnknownModel(f"the model {name!r:.80} is not served here; {served!r} is", param="model")


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors (no such path, wrong method) in the same shape."""
    assert isinstance(error, HTTPException)
    body = ErrorBody(f"{request.method} {request.url.path}: {error.detail}", "invalid_request_error", None, None)
    return _response(msgspec.json.encode(ErrorObject(body)), error.status_code, dict(error.headers or {}))


def _response(body: bytes, status: int, headers: dict[str, str] | None) -> Response:
    return Response(body, status, headers, media_type="application/json")
