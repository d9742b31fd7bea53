"""Reads vLLM's log: how far its start is, and which error ended it.

Written from the messages of vLLM 0.32 and 0.33. Unknown lines are ignored, and an unknown error is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail.backends.supervised.program import Failure, Phase, Progress

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: "(EngineCore pid=12) INFO 11-22 07:55:43 [utils.py:347] ", or parts of it for lines of other writers.
_PREFIX = re.compile(
    r"(?:\((?P<process>\w[^()]*?) pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?)?"
)
#: The gaps are bounded, so that a line with any content takes bounded time.
_OF = r":\s{0,4}\d{1,3}%.{0,200}?\|\s{0,4}(?P<done>\d{1,9})/(?P<total>\d{1,9})\b"
_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("load", re.compile(rf"(?:Loading|Multi-thread loading) .{{0,80}}(?:shards|[Ll]oader|Streamer)\b.{{0,80}}?{_OF}")),
    ("capture", re.compile(rf"Capturing .{{0,80}}?{_OF}")),
    ("load", re.compile(r"Starting to load model|Loading drafter model")),
    (
        "compile",
        re.compile(
            r"Using cache directory: .*torch_compile|Dynamo bytecode transform|Compiling a graph|torch\.compile|"
            r"Warming up model for the compilation|Compile and warming up|"
            r".{0,80}(?:[Aa]utotun(?:e|ing)\b|DeepGEMM warmup)"
        ),
    ),
    ("allocate", re.compile(r"Available KV cache memory|\S* ?KV cache size:")),
    ("capture", re.compile(r"Capturing |Profiling CUDA graph memory")),
    ("ready", re.compile(r"(?:INFO: *)?Application startup complete")),
)


def progress(line: str) -> Progress | None:
    """The progress that a line of the log reports; None if it reports none."""
    message = _read(line).message
    for phase, pattern in _PHASES:
        match = pattern.match(message)
        if match is not None:
            counts = match.groupdict()
            return Progress(phase, *(int(counts[name]) for name in ("done", "total") if name in counts))
    return None


class _Line(NamedTuple):
    process: str
    level: str
    message: str


def _read(line: str) -> _Line:
    line = _COLOUR.sub("", line)
    match = _PREFIX.match(line)
    assert match is not None  # every part of the pattern is optional
    return _Line(match["process"] or "", match["level"] or "", line[match.end() :])


_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: "ValueError: …", "pydantic_core._pydantic_core.ValidationError: …", or an exception without a message.
_RAISED = re.compile(r"(?P<name>(?:\w+\.)*_?[A-Z]\w*)(?:: (?P<message>.*))?$")
#: An exception that is logged without a traceback.
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): .")
#: An error that only reports the error of another process.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|Worker failed with error|WorkerProc (?:initialization )?failed|"
    r"EngineCore encountered an issue|[Ss]ee (?:root cause|stack trace)|EngineDeadError|CancelledError|"
    r"KeyboardInterrupt|SystemExit|BrokenPipeError|[Pp]roc\w* died"
)
_USAGE = re.compile(r"[\w. -]*: error: (?P<message>.+)")
_SHOWN = 8
#: The useful part of pydantic's ``1 validation error for ModelConfig …``.
_VALIDATION = re.compile(r"(?:Value|Assertion) error, (?P<message>.*?)(?: \[type=.*)?$")


class _Raised(NamedTuple):
    """The last exception of a traceback, or of several chained ones. `at`: the line of its traceback."""

    error: str
    lines: tuple[str, ...]
    at: int


def failure(log: Sequence[str]) -> Failure | None:
    """The error that ended vLLM, from the last lines of its log; None if no line looks like an error.

    It is the error of the process that raised first, and the last one of a chain.
    """
    lines = [_read(line) for line in log]
    for line in reversed(lines):
        match = _USAGE.match(line.message)
        if match is not None and not line.level:
            return Failure(match["message"], (line.message,))
    raised = sorted(_raised(lines), key=lambda each: each.at)
    own = [each for each in raised if not _SECOND_HAND.search(each.error)]
    for first in own[:1] or raised[:1]:
        return Failure(first.error, first.lines, _drafter(lines[: first.at]))
    errors = [line.message for line in lines if _ERROR.match(line.message)]
    errors = errors or [line.message for line in lines if line.level in ("ERROR", "CRITICAL") and line.message.strip()]
    return Failure(errors[-1], tuple(errors[-_SHOWN:])) if errors else None


def last(log: Sequence[str]) -> tuple[str, ...]:
    """The last lines that are not empty."""
    return tuple(line for line in (_read(line).message.rstrip() for line in log) if line)[-_SHOWN:]


def _raised(lines: Sequence[_Line]) -> Iterator[_Raised]:
    """The exceptions of each process. Lines of several processes may alternate."""
    for process in dict.fromkeys(line.process for line in lines):
        own = [(at, line.message.rstrip()) for at, line in enumerate(lines) if line.process == process]
        messages = [message for _, message in own]
        begins = [i for i, message in enumerate(messages) if message == _TRACEBACK]
        for n, begin in enumerate(begins):
            end = begins[n + 1] if n + 1 < len(begins) else len(messages)
            exception = _exception(messages[begin + 1 : end])
            # A traceback that is followed by a chained one is not the last of its chain.
            if exception is not None and not any(m.startswith(_CHAINED) for m in messages[begin + 1 : end]):
                error, shown = exception
                yield _Raised(error, shown, own[begin][0])


def _exception(messages: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The exception at the end of a traceback's lines, and the lines that show it."""
    for i, message in enumerate(messages):
        match = None if message[:1] in ("", " ", "\t") else _RAISED.match(message)
        if match is None:
            continue
        text, name = match["message"] or "", match["name"].rpartition(".")[2]
        more = []
        for other in messages[i + 1 : i + 6]:
            if not other or other.startswith(_CHAINED):
                break
            more.append(other.strip())
        whole = " ".join((text, *more)).strip()
        validation = next((m for m in map(_VALIDATION.search, more) if m), None)
        error = validation["message"] if validation else f"{name}: {whole}" if whole else name
        frame = max((n for n in range(i) if messages[n].startswith("  File ")), default=i)
        return error, tuple(m for m in messages[frame : i + 1 + len(more)] if m.strip(" ^~"))[-_SHOWN:]
    return None


def _drafter(before: Sequence[_Line]) -> bool:
    """Whether the drafter was being loaded after these lines."""
    for line in reversed(before):
        if line.message.startswith("Loading drafter model"):
            return True
        if "KV cache size" in line.message or line.message.startswith("Model loading took"):
            return False
    return False
