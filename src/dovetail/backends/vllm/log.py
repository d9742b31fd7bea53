"""What lines of vLLM's log say: how far it is, and what went wrong.

Written from the messages of vLLM 0.32 and 0.33. Nothing hangs on any of them: a line that is not known shows nothing,
and an error that is not known is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Phase = Literal["starting", "download", "load", "compile", "allocate", "capture", "ready"]


class Progress(NamedTuple):
    """Where the engine is on its way, and of what it has how much, where it says that."""

    phase: Phase
    done: int | None = None
    total: int | None = None


class Failure(NamedTuple):
    """Why the engine ended: in a sentence, and the lines of the log that say so. `drafter`: while that was loading."""

    error: str
    lines: tuple[str, ...]
    drafter: bool = False


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: "(EngineCore pid=12) INFO 11-22 07:55:43 [utils.py:347] ", or less of it where something else than its logger wrote.
_PREFIX = re.compile(
    r"(?:\((?P<process>\w[^()]*?) pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?)?"
)
#: The gaps are bounded, as is the time that they take: what a line holds may be anybody's.
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
    """What a line says of how far the engine is, None if that is not its matter."""
    message = _read(line).message
    for phase, pattern in _PHASES:
        match = pattern.match(message)
        if match is not None:
            found = match.groupdict()
            return Progress(phase, *(int(found[name]) for name in ("done", "total") if name in found))
    return None


class _Line(NamedTuple):
    process: str
    level: str
    message: str


def _read(line: str) -> _Line:
    line = _COLOUR.sub("", line)
    match = _PREFIX.match(line)
    assert match is not None  # all of it is optional
    # What its own formatter put before the message may stand there twice, for processes within processes.
    return _Line(match["process"] or "", match["level"] or "", line[match.end() :])


_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: "ValueError: …", "pydantic_core._pydantic_core.ValidationError: …", and those without a message.
_RAISED = re.compile(r"(?P<name>(?:\w+\.)*_?[A-Z]\w*)(?:: (?P<said>.*))?$")
#: One that stands without a traceback.
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): .")
#: What is only the news, in another process, of what was raised before.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|Worker failed with error|WorkerProc (?:initialization )?failed|"
    r"EngineCore encountered an issue|[Ss]ee (?:root cause|stack trace)|EngineDeadError|CancelledError|"
    r"KeyboardInterrupt|SystemExit|BrokenPipeError|[Pp]roc\w* died"
)
_USAGE = re.compile(r"[\w. -]*: error: (?P<said>.+)")
_SHOWN = 8
#: ``1 validation error for ModelConfig``, and then what matters.
_VALIDATION = re.compile(r"(?:Value|Assertion) error, (?P<said>.*?)(?: \[type=.*)?$")


class _Raised(NamedTuple):
    """The end of a traceback, or of several that led to one another."""

    error: str
    lines: tuple[str, ...]
    at: int


def failure(log: Sequence[str]) -> Failure | None:
    """The error that ended the engine, as its last lines tell it; None where no line looks like one.

    The first process to raise is the one whose error it is, and of errors that led to one another the last says most.
    """
    lines = [_read(line) for line in log]
    for line in reversed(lines):
        match = _USAGE.match(line.message)
        if match is not None and not line.level:
            return Failure(match["said"], (line.message,))
    raised = sorted(_raised(lines), key=lambda each: each.at)
    own = [each for each in raised if not _SECOND_HAND.search(each.error)]
    for found in own[:1] or raised[:1]:
        return Failure(found.error, found.lines, _drafter(lines[: found.at]))
    errors = [line.message for line in lines if _ERROR.match(line.message)]
    errors = errors or [line.message for line in lines if line.level in ("ERROR", "CRITICAL") and line.message.strip()]
    return Failure(errors[-1], tuple(errors[-_SHOWN:])) if errors else None


def last(log: Sequence[str]) -> tuple[str, ...]:
    """The last lines that say anything."""
    return tuple(line for line in (_read(line).message.rstrip() for line in log) if line)[-_SHOWN:]


def _raised(lines: Sequence[_Line]) -> Iterator[_Raised]:
    """What each process raised: their lines may stand between one another's."""
    for process in dict.fromkeys(line.process for line in lines):
        own = [(at, line.message.rstrip()) for at, line in enumerate(lines) if line.process == process]
        messages = [message for _, message in own]
        begins = [i for i, message in enumerate(messages) if message == _TRACEBACK]
        for n, begin in enumerate(begins):
            end = begins[n + 1] if n + 1 < len(begins) else len(messages)
            found = _end(messages[begin + 1 : end])
            # One that led to the next is not the last word.
            if found is not None and not any(m.startswith(_CHAINED) for m in messages[begin + 1 : end]):
                error, shown = found
                yield _Raised(error, shown, own[begin][0])


def _end(messages: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Of the lines after "Traceback", what was raised and the lines that show it."""
    for i, message in enumerate(messages):
        match = None if message[:1] in ("", " ", "\t") else _RAISED.match(message)
        if match is None:
            continue
        said, name = match["said"] or "", match["name"].rpartition(".")[2]
        more = []
        for other in messages[i + 1 : i + 6]:
            if not other or other.startswith(_CHAINED):
                break
            more.append(other.strip())
        whole = " ".join((said, *more)).strip()
        validation = next((m for m in map(_VALIDATION.search, more) if m), None)
        error = validation["said"] if validation else f"{name}: {whole}" if whole else name
        frame = max((n for n in range(i) if messages[n].startswith("  File ")), default=i)
        return error, tuple(m for m in messages[frame : i + 1 + len(more)] if m.strip(" ^~"))[-_SHOWN:]
    return None


def _drafter(before: Sequence[_Line]) -> bool:
    """Whether the drafter was being loaded when these lines ended."""
    for line in reversed(before):
        if line.message.startswith("Loading drafter model"):
            return True
        if "KV cache size" in line.message or line.message.startswith("Model loading took"):
            return False
    return False
