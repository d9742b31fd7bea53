"""The program `llama-server`: its version, how far its start is, and which error ended it.

Written from the messages of llama.cpp's build 0.5.0. Unknown lines are ignored, and an unknown error is shown as it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from dovetail.backends.supervised.program import Failure, Phase, Progress
from dovetail.errors import PlanError

_PATIENCE_S = 30
_VERSION = re.compile(r"version: (\S+)")
#: Time, level and part of the program before a message, each of which may be missing.
_PREFIX = re.compile(r"(?:\x1b\[[0-9;]*m)*(?:[\d.:]+ )?(?:[DIWE] )?(?:\x1b\[[0-9;]*m)*(?:(?:srv|main|slot|cmn|que) +)?")
_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("load", re.compile(r"loading model|load_model|llama_model_loader|load_tensors|llama_prepare_model_devices")),
    ("allocate", re.compile(r"llama_context|llama_kv_cache|common_context|graph_reserve|sched_reserve")),
    ("compile", re.compile(r"common_init_from_params: warming up|initializing slots|init: chat template")),
)
_SHOWN = 8
_ERROR = re.compile(r"error|failed|unable|cannot|can't|couldn't|invalid|out of memory|unknown|terminate", re.IGNORECASE)
#: A message that only says that another one has ended the start.
_SECOND_HAND = re.compile(
    r"exiting due to|failed to load model|failed to initialize|error loading model$|common_init|to show .*usage"
)
#: (pattern in the error, advice).
_KNOWN = (
    (
        r"out of memory|unable to allocate|failed to allocate|cudaMalloc|alloc(?:ate)?_buffer|ErrorOutOfDeviceMemory",
        "Not enough memory: a shorter --context, a smaller --max-batch, fewer --gpu-layers, or a smaller quantization",
    ),
    (
        r"unknown (?:model )?architecture",
        "This llama.cpp does not know the model: a newer one may",
    ),
    (
        r"unknown pre-tokenizer|invalid ggml type|unsupported (?:file|gguf) version|unknown type",
        "This llama.cpp is older than the file: a newer one may read it",
    ),
    (
        r"corrupted or incomplete|not within the file bounds|invalid magic|tensor .* data|read error",
        "The file is incomplete or damaged: download it again",
    ),
    (
        r"draft model|speculative|vocab type must match",
        "The drafter may belong to another model: --drafter none serves without it",
    ),
    (
        r"invalid argument|unknown argument|error while handling argument",
        "This llama.cpp has other options than Dovetail uses: a newer one (0.5.0 was tried) has them",
    ),
    (r"error while loading shared libraries|libcuda", "The installation of llama.cpp is broken"),
)


def version(program: str) -> str:
    """The version of `program`, as it tells it. Raises `PlanError` for a program that is not llama.cpp's server."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise PlanError(f"{program} cannot be run: {error}") from error
    match = _VERSION.search(done.stdout + done.stderr)
    if match is None:
        raise PlanError(f"{program} does not say which llama.cpp it is (`{program} --version`)")
    return match[1]


class LlamaServer:
    """As in `supervised.program.Program`."""

    name, url = "llama.cpp", "http://llama.cpp"

    def progress(self, line: str) -> Progress | None:
        message = _message(line)
        return next((Progress(phase) for phase, pattern in _PHASES if pattern.match(message)), None)

    def failure(self, log: Sequence[str]) -> Failure | None:
        """The last error that says more than that there was one."""
        messages = [_message(line) for line in log]
        errors = [message for message in messages if _ERROR.search(message)]
        own = [message for message in errors if not _SECOND_HAND.search(message)] or errors
        return Failure(own[-1], tuple(errors[-_SHOWN:])) if own else None

    def last(self, log: Sequence[str]) -> tuple[str, ...]:
        return tuple(message for message in map(_message, log) if message.strip(". "))[-_SHOWN:]

    def advice(self, failure: Failure) -> list[str]:
        return [next((hint for pattern, hint in _KNOWN if re.search(pattern, failure.error)), "")][
            : bool(failure.error)
        ]


def _message(line: str) -> str:
    match = _PREFIX.match(line)
    assert match is not None  # every part of the pattern is optional
    return line[match.end() :].rstrip()
