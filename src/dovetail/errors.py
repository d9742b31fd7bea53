"""Every error that Dovetail raises on purpose, with its HTTP status, the step that failed and who has to act.

    DovetailError                 status  stage     who must act
    ├── InvalidRequest            400     request   the client: a field is wrong; `param` names it
    │   ├── UnknownModel          404     request   the client: no such model is served
    │   ├── UnknownResponse       404     request   the client: no such response is stored
    │   ├── UnknownRecording      404     request   the client: no such recording is in the folder
    │   ├── UnknownPrevious       400     request   the client: previous_response_id names no stored response
    │   ├── ContextExceeded       400     request   the client: prompt and max_tokens do not fit
    │   ├── SchemaRefused         400     request   the client: a tool's schema cannot be enforced
    │   ├── PayloadTooLarge       413     request   the client: the body is larger than the limit
    │   ├── WrongMediaType        415     request   the client: the body is not declared as JSON
    │   └── ForeignHost           421     request   the client: the name that it calls this server by is not its own
    ├── Unauthorized              401     request   the client: no key, or a wrong one
    ├── Forbidden                 403     request   the client: its key does not allow that
    ├── RateLimited               429     request   the client, by trying later: a limit of its key is reached
    ├── NotOffered                501     request   the client: the model's engine has nothing of that kind
    ├── RenderError               400     render    the client: the messages cannot be rendered
    ├── ReaderMisuse              500     parse     the reader's caller: it fed text after `finish`, for example
    ├── UnknownFormat             500     load      the caller: no format or checkpoint folder has that name
    ├── CheckpointError           500     load      the operator: files missing, wrong shapes, unknown architecture
    ├── PlanError                 500     plan      the operator: options that cannot work together
    ├── EngineError               500     complete  the operator: the engine failed
    │   ├── EngineUnavailable     502     complete  the operator: the engine cannot be reached, or died within an answer
    │   └── EngineTimeout         504     complete  the operator: the engine was silent for longer than a deadline
    ├── EngineBusy                503     complete  the client, by trying later: the queue is full or the server stops
    └── StoreUnavailable          503     request   the operator: the store of responses is down, full or too slow

The message tells that person what to do. It never contains a key or a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DovetailError(Exception):
    """Base class of every deliberate error.

    `message`: what went wrong and what to do.
    `param`: the path of the bad field in the client's request, such as ``messages[2].role``; None if no field is bad.
    `status`: the HTTP status.
    `stage`: the step that failed: request, render, complete, parse, load or plan.
    `type`, `code`: stable words for programs, as in OpenAI's error object.
    `private`: the message is for the operator's log only; a client sees the kind of error without it.
    `retry_after`: in how many seconds the client should try again; None if nobody knows.
    """

    status = 500
    stage = "internal"
    type = "server_error"
    code: str | None = None
    private = False
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(DovetailError):
    status = 400
    stage = "request"
    type = "invalid_request_error"
    code = "invalid_value"


class UnknownModel(InvalidRequest):
    status = 404
    code = "model_not_found"


class UnknownResponse(InvalidRequest):
    status = 404
    code = "response_not_found"


class UnknownRecording(InvalidRequest):
    status = 404
    code = "recording_not_found"


class UnknownPrevious(InvalidRequest):
    code = "previous_response_not_found"


class ContextExceeded(InvalidRequest):
    """`prompt`: the tokens of the prompt, or the fewest that it can have; 0 if they are not known.

    `context`: how many the model takes. `max_tokens`: the new tokens that the request asks for; 0 if the prompt alone
    is too long.
    """

    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, prompt: int = 0, context: int = 0, max_tokens: int = 0
    ) -> None:
        super().__init__(message, param=param)
        self.prompt = prompt
        self.context = context
        self.max_tokens = max_tokens


class SchemaRefused(InvalidRequest):
    code = "invalid_function_parameters"


class PayloadTooLarge(InvalidRequest):
    status = 413
    code = "payload_too_large"


class WrongMediaType(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class ForeignHost(InvalidRequest):
    status = 421
    code = "foreign_host"


class Unauthorized(DovetailError):
    status = 401
    stage = "request"
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(DovetailError):
    status = 403
    stage = "request"
    type = "permission_error"
    code = "permission_denied"


class RateLimited(DovetailError):
    status = 429
    stage = "request"
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class NotOffered(DovetailError):
    status = 501
    stage = "request"
    type = "invalid_request_error"
    code = "not_offered"


class RenderError(DovetailError):
    status = 400
    stage = "render"
    type = "invalid_request_error"
    code = "invalid_value"


class ReaderMisuse(DovetailError):
    stage = "parse"


class UnknownFormat(DovetailError):
    stage = "load"
    type = "configuration_error"


class CheckpointError(DovetailError):
    stage = "load"


class PlanError(DovetailError):
    stage = "plan"


class EngineError(DovetailError):
    stage = "complete"


class EngineUnavailable(EngineError):
    status = 502
    code = "engine_unavailable"


class EngineTimeout(EngineError):
    status = 504
    code = "engine_timeout"


class EngineBusy(DovetailError):
    """`status` is 503, or 429 where the engine itself answered with that."""

    status = 503
    stage = "complete"
    code = "engine_busy"


class StoreUnavailable(DovetailError):
    status = 503
    stage = "request"
    code = "store_unavailable"


class LibraryPanic(Exception):
    """A library written in Rust panicked; the message is the library's own."""


def guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `call(*args, **kwargs)`, and raise a panic inside it as `LibraryPanic`, which `except Exception` catches.

    PyO3 raises a panic as a `BaseException` named PanicException, of which each library has its own class. Other
    exceptions pass unchanged, so KeyboardInterrupt and SystemExit still end the process.
    """
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanic(str(error)) from error
