"""Errors as clients see them: in the shape of the API that the path belongs to, and nothing that is private."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dovetail.errors import (
    ContextExceeded,
    DovetailError,
    EngineBusy,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
)

#: The seconds after which a client should try again, for errors that do not know better.
_RETRY_AFTER = 1

#: Anthropic's word for the kind of an error, by status.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(msgspec.Struct, frozen=True):
    error: ErrorBody


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True):
    error: AnthropicErrorBody
    request_id: str | UnsetType
    type: Literal["error"] = "error"


def error_json(error: DovetailError) -> bytes:
    """`error` in OpenAI's shape."""
    return msgspec.json.encode(ErrorObject(ErrorBody(error.message, error.type, error.param, error.code)))


def anthropic_error_json(error: DovetailError, request_id: str | UnsetType = UNSET) -> bytes:
    """`error` in Anthropic's shape, which has no place for the field at fault: the message names it.

    What does not fit into the context is told in the words of Anthropic's API, whose numbers claude-code reads.
    """
    message = error.message
    if isinstance(error, ContextExceeded) and error.prompt:
        message = _too_long(error)
    elif error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return _anthropic_json(error.status, message, request_id)


def _too_long(error: ContextExceeded) -> str:
    if not error.max_tokens:
        return f"prompt is too long: {error.prompt} tokens > {error.context} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt} + {error.max_tokens} > {error.context}, "
        "decrease input length or `max_tokens` and try again"
    )


def _anthropic_json(status: int, message: str, request_id: str | UnsetType) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode(AnthropicError(AnthropicErrorBody(kind, message), request_id))


def error_response(error: DovetailError, request_id: str, *, anthropic: bool) -> Response:
    """The response that reports `error`, in Anthropic's shape or in OpenAI's."""
    body = anthropic_error_json(error, request_id) if anthropic else error_json(error)
    return _response(body, error.status, _headers(error))


def _headers(error: DovetailError) -> dict[str, str]:
    if error.status == 401:
        return {"www-authenticate": "Bearer"}
    if error.status in (429, 503):
        return {"retry-after": str(_RETRY_AFTER if error.retry_after is None else error.retry_after)}
    return {}


def public_error(error: Exception, request_id: str) -> DovetailError:
    """`error` as the client may see it: a private or unexpected error only says where the server's log has more."""
    if isinstance(error, DovetailError) and not error.private:
        return error
    if isinstance(error, EngineBusy):
        busy = EngineBusy("the engine takes no more requests now; try again later")
        busy.status, busy.retry_after = error.status, error.retry_after
        return busy
    where = f"the server's log has it under request id {request_id}"
    if isinstance(error, EngineUnavailable):
        return EngineUnavailable(f"the engine cannot be reached, or was lost; try again later; {where}")
    if isinstance(error, EngineTimeout):
        return EngineTimeout(f"the engine did not answer in time; try again later; {where}")
    if isinstance(error, EngineError):
        return EngineError(f"the engine failed; {where}")
    return DovetailError(f"internal error; {where}")


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors (no such path, wrong method) in the same shapes.

    A request for a WebSocket gets 426, after which codex goes on over HTTP.
    """
    assert isinstance(error, HTTPException)
    status, path, headers = error.status_code, request.url.path, dict(error.headers or {})
    message = f"{request.method} {path}: {error.detail}"
    if status == 405 and request.headers.get("upgrade", "").lower() == "websocket":
        status, headers = 426, {"upgrade": "HTTP/1.1"}
        message = f"{path:.200} is not served over a WebSocket: use HTTP"
    elif status in (404, 405):
        message = explanation(request.method, path, request.app.routes)
        # Starlette names the methods of one of the routes of this path.
        headers = {"allow": ", ".join(_methods(path, request.app.routes))} if status == 405 else headers
    if request.scope["anthropic"]:
        body = _anthropic_json(status, message, request.scope["request_id"])
    else:
        body = msgspec.json.encode(ErrorObject(ErrorBody(message, "invalid_request_error", None, None)))
    return _response(body, status, headers)


def _response(body: bytes, status: int, headers: dict[str, str] | None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def explanation(method: str, path: str, routes: Sequence[BaseRoute]) -> str:
    """Why `method` and `path` are not served, and what is."""
    methods = _methods(path, routes)
    if methods:
        return f"{path:.200} is served for {' and '.join(methods)}, not for {method:.20}"
    corrected = next((other for other in _likely(path) if _methods(other, routes)), None)
    if corrected is not None and path.startswith("/v1/v1/"):
        return (
            f"{path:.200} is not served; {corrected} is: the client adds /v1 itself, so its base URL has to end without"
        )
    if corrected is not None and corrected == f"/v1{path}":
        return f"{path:.200} is not served; {corrected} is: the client's base URL has to end with /v1"
    if corrected is not None:
        return f"{path:.200} is not served; {corrected} is"
    return f"{path:.200} is not served; served are {', '.join(described(routes))}"


def described(routes: Sequence[BaseRoute]) -> list[str]:
    """The served paths with their methods, as in `POST /v1/chat/completions`, without the files of a page."""
    paths: dict[str, list[str]] = {}
    for route in _plain(routes):
        if route.include_in_schema:
            name = route.path.replace(":path", "")
            paths.setdefault(name, []).extend(_sorted(route))
    return [f"{'|'.join(methods)} {path}" for path, methods in paths.items()]


def _plain(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    return (route for route in routes if isinstance(route, Route))


def _sorted(route: Route) -> list[str]:
    return sorted((route.methods or set()) - {"HEAD"})


def _methods(path: str, routes: Sequence[BaseRoute]) -> list[str]:
    return sorted({method for route in _plain(routes) if route.path_regex.match(path) for method in _sorted(route)})


def _likely(path: str) -> Iterator[str]:
    """The paths that the client may have meant."""
    yield f"/v1{path}"
    if path.startswith("/v1/v1/"):
        yield path.removeprefix("/v1")
    yield "/" + "/".join(filter(None, path.split("/")))  # without slashes too many
    _, prefix, rest = path.partition("/v1/")
    yield prefix + rest
