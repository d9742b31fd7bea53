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
#: "0.00.028.319 E srv  ": the time, the level and the part of the program, which lines of other writers lack.
_PREFIX = re.compile(r"(?:[\d.]+ (?P<level>[DIWE]) )?(?:(?:srv|cmn|slot|que)\s+)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("load", re.compile(r"(?:load_model: |common_speculative_init_result: )?loading (?:draft )?model")),
    ("allocate", re.compile(r"(?:init: )?llama threadpool init|load_model: initializing")),
    ("ready", re.compile(r"llama_server: (?:model loaded|listening on)")),
)
_SHOWN = 8
#: An error without a level: of the command line, of the system's loader, or of C++.
_ERROR = re.compile(r"error: |error while |terminate called|what\(\):|.*: error while loading shared libraries")
#: An error that only says that there was another one.
_SECOND_HAND = re.compile(
    r"failed to (?:load|read|initialize|create)|trying to fit params|exiting due to|terminate called"
)
_WHERE = re.compile(r"(?:\w+: |error: |error loading model: |what\(\): *)+")
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
        r"corrupted or incomplete|invalid magic|read error|wrong shape|key not found",
        "The file is incomplete or damaged: download it again",
    ),
    (
        r"invalid argument|unknown argument|error while handling argument",
        "This llama.cpp has other options than Dovetail uses: 0.5.0 was tried",
    ),
    (r"couldn't bind", "Another --port, or another TMPDIR"),
    (r"error while loading shared libraries|libcuda", "The installation of llama.cpp is broken"),
)

_DRAFTER = "It was loading the drafter, which may belong to another model: --drafter none serves without it"


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
        message = _read(line)[1]
        return next((Progress(phase) for phase, pattern in _PHASES if pattern.match(message)), None)

    def failure(self, log: Sequence[str]) -> Failure | None:
        """The first error that says more than that there was one."""
        errors = [
            message for level, message in map(_read, log) if level == "E" or (not level and _ERROR.match(message))
        ]
        own = [message for message in errors if not _SECOND_HAND.search(message)] or errors
        if not own:
            return None
        drafter = any("draft model" in message for message in errors)
        return Failure(_WHERE.sub("", own[0], count=1) or own[0], tuple(errors[:_SHOWN]), drafter)

    def last(self, log: Sequence[str]) -> tuple[str, ...]:
        return tuple(message for _, message in map(_read, log) if message)[-_SHOWN:]

    def advice(self, failure: Failure) -> list[str]:
        hints = [hint for pattern, hint in _KNOWN if re.search(pattern, failure.error)][:1]
        return [*hints, _DRAFTER] if failure.drafter else hints


def _read(line: str) -> tuple[str, str]:
    """The level of a line, "" if it has none, and its message."""
    line = _COLOUR.sub("", line)
    match = _PREFIX.match(line)
    assert match is not None  # every part of the pattern is optional
    return match["level"] or "", line[match.end() :].strip()
