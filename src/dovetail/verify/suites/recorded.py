"""The files of suite `calls`: samples, and the results of runs, as Moonshot's K2 vendor verifier writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.errors import InvalidRequest

#: As many runs of a reference are compared: one with the endpoint, and the other with the first.
_RUNS = 2


class Run(NamedTuple):
    """An answer of one run. `valid`: whether all of its calls validate; None without calls, or if it is not known."""

    finish: str | None
    valid: bool | None = None


def read_samples(path: str) -> list[dict[str, Any]]:
    """The bodies in a file of samples. Raises `InvalidRequest` naming a line that has no body."""
    samples = []
    for number, sample in _lines(path):
        if not isinstance(sample, dict) or not isinstance(sample.get("messages"), list):
            raise InvalidRequest(f"{path}, line {number}: a sample is the body of a request, with messages")
        if not all(isinstance(message, dict) for message in sample["messages"]):
            raise InvalidRequest(f"{path}, line {number}: each of messages must be an object")
        samples.append(sample)
    return samples


def read_results(paths: Sequence[str]) -> list[dict[int, Run]]:
    """The runs in one results.jsonl or two, each by the number of a sample's line. A sample that is twice in a file was
    run twice. Failed requests are left out.

    Raises `InvalidRequest` for a line that is no result, for a third run of a sample, and for a copy of the first file,
    which would be a reference that agrees with itself wholly.
    """
    if len({_text(path) for path in paths}) < len(paths):
        raise InvalidRequest(f"{paths[-1]} is the same as {paths[0]}: give another run of the reference")
    runs: list[dict[int, Run]] = [{} for _ in range(_RUNS)]
    for path in paths:
        for number, result in _lines(path):
            if not isinstance(result, dict) or not isinstance(result.get("data_index"), int):
                raise InvalidRequest(f"{path}, line {number}: a result has data_index and finish_reason")
            if result.get("status") == "success" and isinstance(result.get("finish_reason"), str):
                index, valid = result["data_index"], result.get("tool_calls_valid")
                free = next((run for run in runs if index not in run), None)
                if free is None:
                    raise InvalidRequest(f"{path}, line {number}: a third run of sample {index}; two are compared")
                free[index] = Run(result["finish_reason"], valid if isinstance(valid, bool) else None)
    return runs


def _lines(path: str) -> list[tuple[int, Any]]:
    decoded = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            try:
                decoded.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise InvalidRequest(f"{path}, line {number} is not JSON") from None
    return decoded


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as UTF-8: {error}") from None
