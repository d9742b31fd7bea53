"""Every error Dovetail raises on purpose, and what each one means for whom.

    DovetailError                 status  stage     who must act
    ├── InvalidRequest            400     request   the client: a field is wrong; `param` names it
    │   ├── UnknownModel          404     request   the client: no such model is served
    │   ├── ContextExceeded       400     request   the client: prompt and max_tokens do not fit
    │   ├── SchemaRefused         400     request   the client: a tool's schema cannot be used as it is
    │   └── PayloadTooLarge       413     request   the client: the body is larger than is read
    ├── Unauthorized              401     request   the client: no key, or a wrong one
    ├── RenderError               400     render    the client: the messages cannot be rendered
    ├── ReaderMisuse              500     parse     the caller of a reader: fed after finish, ids without a tokenizer
    ├── CheckpointError           500     load      the operator: files missing, wrong shapes, unknown architecture
    ├── PlanError                 500     plan      the operator: options that cannot work together
    ├── EngineError               500     complete  the operator: the engine failed
    └── EngineBusy                503     complete  the client, later: no room, or shutting down

The message is what the person who must act is told; it never holds a key or a prompt.
"""

from __future__ import annotations


class DovetailError(Exception):
    """Base of every deliberate error.

    `param` names the field at fault in the client's own request (``messages[2].role``), or is None.
    `code` is a stable machine-readable word, as in OpenAI's error shape. A `private` message is for the operator's log;
    clients learn no more than the kind of error.
    """

    status = 500
    stage = "internal"
    type = "server_error"
    code: str | None = None
    private = False

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


class ContextExceeded(InvalidRequest):
    code = "context_length_exceeded"


class SchemaRefused(InvalidRequest):
    code = "invalid_function_parameters"


class PayloadTooLarge(InvalidRequest):
    status = 413
    code = "payload_too_large"


class Unauthorized(DovetailError):
    status = 401
    stage = "request"
    type = "authentication_error"
    code = "invalid_api_key"


class RenderError(DovetailError):
    status = 400
    stage = "render"
    type = "invalid_request_error"
    code = "invalid_value"


class ReaderMisuse(DovetailError):
    stage = "parse"


class CheckpointError(DovetailError):
    stage = "load"


class PlanError(DovetailError):
    stage = "plan"


class EngineError(DovetailError):
    stage = "complete"


class EngineBusy(DovetailError):
    status = 503
    stage = "complete"
    code = "engine_busy"


def reraise_exit(error: BaseException) -> None:
    """Raise `error` again if it is the process that is to end. For callers of others' code, which may panic: a panic of
    a library in Rust is a BaseException too, and no Exception."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise error
