"""The measurement of front ends: its upstream speaks as vLLM does, and its client adds answers up as clients do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.gateway import fronts, load, recording, report
from benchmarks.gateway.measure import percentile, set_pace, upstream
from benchmarks.gateway.upstream import Answers
from dovetail.backends.remote import Server
from dovetail.gateway.turn import runner
from tests.backends.remote.fake import VOCABULARY, completion, ids_of, whole

TOKENS = [(10 + number, f"t{number} ") for number in range(40)]


@pytest.mark.parametrize("pace", ["whole", "0", "1"])
def test_the_upstream_answers_as_vllm_does_at_any_pace(tmp_path: Path, pace: str) -> None:
    async def ids(url: str) -> list[int]:
        server = Server(url, VOCABULARY)
        await server.open()
        try:
            return ids_of(await whole(server, completion(40)))
        finally:
            await server.close()

    with upstream(TOKENS, tmp_path) as port:
        set_pace(port, pace)
        assert asyncio.run(ids(f"http://127.0.0.1:{port}")) == [token for token, _ in TOKENS]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_the_client_adds_up_what_the_upstream_sends(chat: bool, streams: bool) -> None:
    answer = b"".join(Answers(TOKENS).of(chat, streams, 7))
    assert load.text_of(answer) == "".join(text for _, text in TOKENS[:7])


def test_an_answer_that_is_an_error_is_shown() -> None:
    assert load.text_of(b"HTTP/1.1 502 Bad Gateway\r\n\r\nno").startswith("HTTP/1.1 502")


def test_a_request_has_its_length() -> None:
    request = load.request_of({"path": "/p", "body": {"a": 1}})
    head, _, body = request.partition(b"\r\n\r\n")
    assert json.loads(body) == {"a": 1} and b"Content-Length: %d" % len(body) in head


def test_percentiles() -> None:
    assert [percentile(range(1, 101), share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]


def test_a_front_end_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(fronts.Missing, match="there is no"):
        fronts.router(tmp_path).version()


def test_the_tables_have_a_row_for_each_front_end_and_a_reason_for_each_gap() -> None:
    streams = {"cpu_us": 20.4, "busiest_us": 10.0}
    measured = {"name": "one", "version": "1", "missing": ["held: it broke"], "cells": {"32 whole": streams}}
    missing = {"name": "two", "missing": ["there is no two"]}
    options = {"tokens": 500, "held": 1000, "turns": 3, "peer_turns": 1}
    results = {"fronts": [measured, missing], "options": options, "machine": "m", "load": (1.0, 2.0)}
    tables = report.sheets(results)
    assert tables[0][2] == [["one", "–", "20", "–", "–", "–"]]
    assert tables[1][2] == [["one", "–", "100,000", "–"]]
    assert tables[-1][2] == [["one", "held: it broke"], ["two", "there is no two"]]
    assert all(len(row) == len(headings) for _, headings, rows in tables for row in rows)
    assert report.notes(results)[0] == "m; load average 1.0 before and 2.0 after; one 1."


@pytest.mark.slow
@pytest.mark.parametrize("case", ["calls", "text"])
def test_the_cost_of_recordings_is_measured(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(runner, "Captures", recording.Timed)
    it = asyncio.run(recording.measure(case, blocks=2, requests=1, concurrency=1, tokens=8))
    assert it.case == case and min(it.plain, it.recorded, it.writing, *it.ratio, *it.cpu_ratio) > 0 and 0 < it.share < 1
