"""The requests that `serve --record` recorded, as jobs of `dovetail bench --workload DIR`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from dovetail.bench.workload import Job, Turn
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import Recording, decode


def recorded_jobs(folder: Path, count: int) -> list[Job]:
    """The first `count` recordings of a folder that have prompt and answer, a job each: its times and its lengths.

    The texts of the recordings are not sent. Raises `InvalidRequest`.
    """
    recordings = [decode(file.read_bytes(), str(file)) for file in sorted(folder.glob("*.recording.json"))]
    answered = sorted((each for each in recordings if _lengths(each) is not None), key=lambda each: each.began)
    if not answered:
        raise InvalidRequest(f"{folder} has no recording with a prompt and an answer: they are *.recording.json")
    first = datetime.fromisoformat(answered[0].began)
    return [_job(each, (datetime.fromisoformat(each.began) - first).total_seconds()) for each in answered[:count]]


def _job(recording: Recording, start: float) -> Job:
    prompt, answer = _lengths(recording) or (1, 2)
    return Job(recording.id, (Turn(prompt, max(answer, 2)),), start=start)


def _lengths(recording: Recording) -> tuple[int, int] | None:
    """The tokens of the prompt and of the first choice; None without them."""
    answer = sum(len(step.tokens) for step in recording.steps if step.choice == 0)
    return None if recording.prompt is None or not answer else (recording.prompt.tokens, answer)
