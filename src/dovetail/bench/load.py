"""Jobs sent as they arrive: so many at once, at random times of a rate, or when a trace has them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

import msgspec

from dovetail.bench.calls import TOOL, wrong
from dovetail.bench.figures import Acceptance, Calls, Goodput, Times, accepted, is_good, times
from dovetail.bench.plan import ServiceLevel
from dovetail.bench.prompts import TASK, words
from dovetail.bench.target import Target, Timed, timed
from dovetail.bench.timing import Sample
from dovetail.bench.workload import BLOCK, Job, Turn
from dovetail.client.answer import Answer
from dovetail.client.not_tested import NotTested

#: Requests at once, above which an endpoint does not keep up with the rate.
_MOST_AT_ONCE = 1024

Arrival = Literal["concurrency", "rate", "trace"]


class Load(msgspec.Struct, frozen=True):
    """How jobs arrive. `value`: how many at once, how many a second, or how many times as fast as the trace."""

    arrival: Arrival
    value: float


class LoadFigures(msgspec.Struct, frozen=True):
    """What one endpoint did under a load. Without figures, `because` says why.

    Times are in ms, from the moment at which a request was due, and not from when it was sent. `job_ms`: from the first
    request of a job to the end of its last answer, without pauses. `late_ms`: from due to sent: the client's own
    delay, and that of the connection.
    `failed`: requests without an answer, by reason; the rest of such a job is not sent. `kept_up`: false if too many
    requests were waiting at once.
    """

    endpoint: str
    load: Load
    because: str | None = None
    kept_up: bool = True
    jobs: int = 0
    requests: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_share: float = 0.0
    answer_tokens: int = 0
    answer_tokens_per_second: float = 0.0
    ttft_ms: Times | None = None
    answer_ms: Times | None = None
    tpot_ms: Times | None = None
    end_to_end_ms: Times | None = None
    job_ms: Times | None = None
    late_ms: Times | None = None
    most_at_once: int = 0
    acceptance: Acceptance | None = None
    goodput: Goodput | None = None
    calls: Calls = Calls()
    failed: dict[str, int] = {}


class _Answered(msgspec.Struct, frozen=True):
    """A request with its answer. `late`: seconds from due to sent."""

    timed: Timed
    late: float
    calls: bool


class LoadRun:
    """Sends jobs to one endpoint. `progress` is called after each request."""

    def __init__(
        self, target: Target, jobs: Sequence[Job], load: Load, seed: int, progress: Callable[[], None]
    ) -> None:
        self._target, self._jobs, self._load, self._seed = target, jobs, load, seed
        self._progress = progress
        self._begun: list[tuple[list[_Answered], int]] = []  # the answers of each job, and how many turns it has
        self._failed: Counter[str] = Counter()
        self._at_once = self._most_at_once = 0
        self._began = 0.0

    async def run(self, level: ServiceLevel | None = None) -> LoadFigures:
        empty = LoadFigures(self._target.name, self._load)
        try:
            per_word = await self._target.tokens_per_word()
        except NotTested as reason:
            return msgspec.structs.replace(empty, because=reason.because)
        self._began = asyncio.get_running_loop().time()
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for due, job in self._arrivals(tasks):
                if self._at_once >= _MOST_AT_ONCE:
                    because = f"it does not keep up: {_MOST_AT_ONCE} requests are waiting at once"
                    return msgspec.structs.replace(empty, because=because, kept_up=False)
                tasks.add(asyncio.create_task(self._job(job, due, per_word)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.figures(level)

    async def _arrivals(self, tasks: set[asyncio.Task[None]]) -> AsyncIterator[tuple[float, Job]]:
        """Each job when it is due."""
        now, draw = asyncio.get_running_loop().time, random.Random(f"{self._seed} arrivals")
        due = began = now()
        for place, job in enumerate(self._jobs):
            match self._load.arrival:
                case "concurrency":
                    while sum(not task.done() for task in tasks) >= self._load.value:
                        await asyncio.wait([task for task in tasks if not task.done()], return_when="FIRST_COMPLETED")
                    due = now()
                case "rate":
                    due += draw.expovariate(self._load.value) if place else 0.0
                case "trace":
                    due = began + job.start / self._load.value
            await asyncio.sleep(max(due - now(), 0.0))
            yield due, job

    async def _job(self, job: Job, due: float, per_word: float) -> None:
        answered: list[_Answered] = []
        self._begun.append((answered, len(job.turns)))
        messages = _beginning(job, per_word)
        calls = any(turn.calls for turn in job.turns)
        for place, turn in enumerate(job.turns):
            if place:
                due = asyncio.get_running_loop().time() + turn.pause
                await asyncio.sleep(turn.pause)
            messages += _new(job, place, messages, per_word)
            try:
                each = await self._request(messages, turn, due, tools=calls)
            except NotTested as reason:
                self._failed[reason.because] += 1
                break
            answered.append(each)
            messages.append(_message(each.timed.answer))

    async def _request(self, messages: list[Any], turn: Turn, due: float, *, tools: bool) -> _Answered:
        request: dict[str, Any] = {"messages": messages}
        if tools:
            request |= {"tools": [TOOL], "tool_choice": "required" if turn.calls else "none"}
        self._at_once += 1
        self._most_at_once = max(self._most_at_once, self._at_once)
        try:
            arrival = await self._target.arrival(request, "calls" if turn.calls else "prose", turn.answer_tokens, {})
        finally:
            self._at_once -= 1
            self._progress()
        return _Answered(timed(arrival), arrival.sent - due, turn.calls)

    def figures(self, level: ServiceLevel | None = None) -> LoadFigures:
        """Those of what has been answered. A group of times is a job, because its requests are not independent."""
        empty, seconds = LoadFigures(self._target.name, self._load), asyncio.get_running_loop().time() - self._began
        groups = [answered for answered, _ in self._begun if answered]
        worked = [sum(e.late + e.timed.sample.end for e in each) for each, turns in self._begun if len(each) == turns]
        every = [each for group in groups for each in group]
        if not every:
            because = next(iter(self._failed), "nothing was sent")
            return msgspec.structs.replace(empty, because=because, failed=dict(self._failed))
        samples = [each.timed.sample for each in every]
        prompts, answers = (sum(getattr(each, f) for each in samples) for f in ("prompt_tokens", "tokens"))
        finished = [each.timed.answer for each in every if each.calls and not each.timed.answer.cut_off]
        reasons = [reason for answer in finished if (reason := wrong(answer)) is not None]

        def of(value: Callable[[Sample], float | None]) -> Times | None:
            return times(
                [
                    [1000 * (time + each.late) for each in group if (time := value(each.timed.sample)) is not None]
                    for group in groups
                ]
            )

        return msgspec.structs.replace(
            empty,
            jobs=len(self._begun),
            requests=len(every),
            seconds=seconds,
            prompt_tokens=prompts,
            cached_share=sum(each.cached_tokens for each in samples) / prompts,
            answer_tokens=answers,
            answer_tokens_per_second=answers / seconds if seconds else 0.0,
            ttft_ms=of(lambda sample: sample.first),
            answer_ms=of(lambda sample: sample.answer),
            tpot_ms=times([[1000 * t for each in g if (t := each.timed.sample.time_per_token)] for g in groups]),
            end_to_end_ms=of(lambda sample: sample.end),
            job_ms=times([[1000 * each] for each in worked]),
            late_ms=times([[1000 * each.late for each in group] for group in groups]),
            most_at_once=self._most_at_once,
            acceptance=accepted([each.drafting for each in samples if each.drafting is not None]),
            goodput=None if level is None else self._goodput(every, seconds, level),
            calls=Calls(len(finished), len(reasons), reasons[0] if reasons else None),
            failed=dict(self._failed),
        )

    def _goodput(self, every: Sequence[_Answered], seconds: float, level: ServiceLevel) -> Goodput:
        """A request without an answer is not good."""
        good = sum(is_good(each.timed.sample, level, each.late) for each in every)
        return Goodput(good / (len(every) + self._failed.total()), good / seconds if seconds else 0.0)


def _beginning(job: Job, per_word: float) -> list[Any]:
    """The system prompt that all jobs share."""
    count = round(job.shared_tokens / per_word)
    return [{"role": "system", "content": words("shared", count)}] if count else []


def _new(job: Job, place: int, messages: Sequence[Any], per_word: float) -> list[Any]:
    """The message of the user before turn `place`, or the results of the calls that the last answer has."""
    turn, own = job.turns[place], f"{job.own} {place}"
    if place:
        text = words(own, round(turn.new_tokens / per_word))
        calls = messages[-1].get("tool_calls", [])
        if not calls:
            return [{"role": "user", "content": text}]
        results = [text, *["done"] * (len(calls) - 1)]
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
    blocks = [words(f"block {block}", round(BLOCK / per_word)) for block in job.blocks]
    rest = words(own, max(round((turn.new_tokens - BLOCK * len(blocks)) / per_word), 1))
    return [{"role": "user", "content": "\n".join((*blocks, rest, TASK["calls" if turn.calls else "prose"]))}]


def _message(answer: Answer) -> Any:
    """The answer as a message of the history, without calls that may be cut off."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.message.calls
        if call.id and not answer.cut_off
    ]
    return message | ({"tool_calls": calls} if calls else {})
