"""What clients do: jobs of one or several turns, as their kinds of work have them, or as a trace file has them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dovetail.errors import InvalidRequest

#: The tokens of a block of a Mooncake trace, whose hash names it.
BLOCK = 512
_MOST_TOKENS = 10_000_000
_MOST_MS = 1e15
#: The fewest tokens of an answer that has to call a tool: fewer would cut each call off.
_LEAST_CALL = 64


class Turn(msgspec.Struct, frozen=True):
    """One request of a job.

    `new_tokens`: of the user's message, or of the tool's result. `answer_tokens`: the most of the answer.
    `pause`: seconds between the end of the answer before and this request. `calls`: whether the answer must call.
    """

    new_tokens: int
    answer_tokens: int
    pause: float = 0.0
    calls: bool = False


class Job(msgspec.Struct, frozen=True):
    """Turns after one another, each with the messages of the earlier ones.

    `own`: text from which the words of its messages are drawn. `shared_tokens`: of the beginning that all jobs have.
    `blocks`: names of the blocks of 512 tokens with which the first message begins; the same name has the same text.
    `start`: seconds after the first job of a trace.
    """

    own: str
    turns: tuple[Turn, ...]
    shared_tokens: int = 0
    blocks: tuple[int, ...] = ()
    start: float = 0.0


def _around(draw: random.Random, median: float, sigma: float = 0.6) -> int:
    """A whole number from a log-normal distribution, at most eight times the median."""
    return max(round(min(draw.lognormvariate(math.log(median), sigma), 8 * median)), 1)


def _chat(draw: random.Random, own: str) -> Job:
    turns = [
        Turn(_around(draw, 60), _around(draw, 200), draw.expovariate(1 / 10) if turn else 0.0)
        for turn in range(draw.choices((1, 2, 3, 4, 6), (30, 25, 20, 15, 10))[0])
    ]
    return Job(own, tuple(turns), shared_tokens=200)


def _rag(draw: random.Random, own: str) -> Job:
    return Job(own, (Turn(_around(draw, 3000), _around(draw, 150)),), shared_tokens=100)


def _batch(draw: random.Random, own: str) -> Job:
    return Job(own, (Turn(_around(draw, 500), _around(draw, 300)),))


def _agentic(draw: random.Random, own: str) -> Job:
    """A coding agent, with the parameters of aiperf's synthesizer of agentic traces (aiperf 0.13, `agentic_code_gen`).

    Tools and system prompt have 32,000 tokens, a session's beginning 15,000, a turn adds about 6,000 and generates
    about 1,000. Seven of ten turns follow a tool after 2.5 s, the others a human after 40 s. A session ends before its
    prompt has 167,000 tokens.
    """
    turns: list[Turn] = []
    prompt = 32_000
    while True:
        new, answer = _around(draw, 15_000 if not turns else 6_000), _around(draw, 1_000)
        prompt += new + answer
        if turns and prompt > 167_000:
            return Job(own, (*turns[:-1], msgspec.structs.replace(turns[-1], calls=False)), shared_tokens=32_000)
        pause = draw.expovariate(1 / (2.5 if draw.random() < 0.7 else 40.0)) if turns else 0.0
        turns.append(Turn(new, max(answer, _LEAST_CALL), pause, calls=True))


WORKLOADS: Mapping[str, Callable[[random.Random, str], Job]] = {
    "agentic": _agentic,
    "batch": _batch,
    "chat": _chat,
    "rag": _rag,
}


def jobs(name: str, count: int, seed: int) -> list[Job]:
    """`count` jobs of a kind of work. The same `seed` gives the same jobs."""
    return [WORKLOADS[name](random.Random(f"{seed} {name} {i}"), f"{seed} {name} {i}") for i in range(count)]


def scaled(job: Job, tokens: float, pauses: float) -> Job:
    """The job with this many times its tokens and its pauses. Calls keep room for an answer."""
    turns = tuple(
        Turn(
            max(round(turn.new_tokens * tokens), 1),
            max(round(turn.answer_tokens * tokens), _LEAST_CALL if turn.calls else 2),
            turn.pause * pauses,
            turn.calls,
        )
        for turn in job.turns
    )
    shared = round(job.shared_tokens * tokens)
    return msgspec.structs.replace(job, turns=turns, shared_tokens=shared, start=job.start * pauses)


def from_trace(lines: Iterable[str], count: int) -> list[Job]:
    """The first `count` requests of a trace in Mooncake's form (https://github.com/kvcache-ai/Mooncake), a job each.

    Each line has `timestamp` in ms, `input_length`, `output_length` and `hash_ids`, the names of its blocks of 512
    tokens. Lines of the same `session_id`, as aiperf's traces have, are turns of one job; `delay` is their pause in ms.
    Raises `InvalidRequest`.
    """
    read: list[Job] = []
    sessions: dict[str, int] = {}
    first: float | None = None
    for number, line in enumerate(lines, 1):
        if line.strip():
            entry = _entry(line, number)
            if entry.session_id is not None and entry.session_id in sessions:
                place = sessions[entry.session_id]
                read[place] = _longer(read[place], entry)
                continue
            if len(read) == count:
                if not sessions:
                    break
                continue
            if entry.session_id is not None:
                sessions[entry.session_id] = len(read)
            first = entry.timestamp if first is None else first
            turn = Turn(entry.input_length, max(entry.output_length, 2))
            blocks = tuple(entry.hash_ids[: entry.input_length // BLOCK])
            start = max(entry.timestamp - first, 0.0) / 1000
            read.append(Job(f"line {number}", (turn,), blocks=blocks, start=start))
    if not read:
        raise InvalidRequest("the trace has no line: each is an object with timestamp, input_length and output_length")
    return read


def _longer(job: Job, entry: _Entry) -> Job:
    """The job with another turn. The `input_length` of a later turn is that of its own message."""
    turn = Turn(entry.input_length, max(entry.output_length, 2), entry.delay / 1000)
    return msgspec.structs.replace(job, turns=(*job.turns, turn))


class _Entry(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float = 0.0
    hash_ids: list[int] = []
    session_id: str | None = None
    delay: float = 0.0


def _entry(line: str, number: int) -> _Entry:
    try:
        entry = msgspec.json.decode(line, type=_Entry)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"line {number} of the trace: {error}") from error
    if not (0 < entry.input_length <= _MOST_TOKENS and 0 < entry.output_length <= _MOST_TOKENS):
        raise InvalidRequest(f"line {number} of the trace: its lengths must be 1 to {_MOST_TOKENS} tokens")
    if not 0 <= entry.delay <= _MOST_MS:
        raise InvalidRequest(f"line {number} of the trace: its delay must be 0 to {_MOST_MS:.0e} ms")
    if not abs(entry.timestamp) <= _MOST_MS:
        raise InvalidRequest(f"line {number} of the trace: its timestamp must be within {_MOST_MS:.0e} ms of 0")
    return entry
