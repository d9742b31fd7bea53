"""The measurement of front ends: its upstream speaks as vLLM does, and its client adds answers up as clients do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from benchmarks.gateway import fronts, load, pictures, recording, report
from benchmarks.gateway.measure import Measured, set_pace, streaming, upstream
from dovetail.backends.remote import Server
from dovetail.client.transport import Reply
from dovetail.completion import Picture
from dovetail.gateway import app
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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("streams", [True, False])
def test_the_client_adds_up_what_the_upstream_sends(tmp_path: Path, path: str, streams: bool) -> None:
    with upstream(TOKENS, tmp_path) as port:
        url, body = f"http://127.0.0.1:{port}", {"max_tokens": 7, "stream": streams}
        arrivals = asyncio.run(load.at_once(url, path, body, 3))
        arrivals += asyncio.run(load.one_by_one(url, path, body, 2, keep=streams))
    assert [load.text_of(each.reply) for each in arrivals] == ["".join(text for _, text in TOKENS[:7])] * 5
    assert all(load.latency(each) >= each.pieces[0][0] - each.sent > 0 for each in arrivals)


def test_an_answer_that_is_an_error_is_shown() -> None:
    assert load.text_of(Reply(502, {}, b"no")) == "502: no"


@pytest.mark.slow
def test_streams_that_are_held_are_measured_while_all_of_them_run(tmp_path: Path) -> None:
    """The upstream is its own front end here."""
    texts = {5: "".join(text for _, text in TOKENS[:5]), 4: "something else"}
    with upstream(TOKENS, tmp_path) as port:
        running = Beside(port)
        measured = Measured(fronts.dovetail("none"), running, port, texts)
        figures = measured.held(4, 5, "1000")
        assert running.streaming == [0, 4] and figures["asked"] > 0 and figures["health_worst_ms"] > 0
        with pytest.raises(RuntimeError, match="not what the upstream sent"):
            measured.streams(2, 4, "whole")


class Beside(fronts.Running):
    """No process: it notes how many streams there are whenever its memory is asked for."""

    def __init__(self, port: int) -> None:
        self.port, self.streaming = port, list[int]()

    def cpu(self) -> dict[int, float]:
        return {1: 0.0}

    def memory(self) -> int:
        self.streaming.append(streaming(self.port))
        return 0


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


def test_the_upstream_answers_prompts_with_pictures_as_vllm_does(tmp_path: Path) -> None:
    async def answered(url: str) -> tuple[bool, list[int], int | None]:
        server = Server(url, VOCABULARY)
        await server.open()
        try:
            picture = Picture(b"a file", "image/png", "digest")
            batches = await whole(server, completion(40, (5, 9), pictures=(picture,), picture_token=9))
            return server.info.pictures, ids_of(batches), batches[0].prompt_tokens
        finally:
            await server.close()

    with upstream(TOKENS, tmp_path) as port:
        assert asyncio.run(answered(f"http://127.0.0.1:{port}")) == (True, [token for token, _ in TOKENS], 1000)


@pytest.mark.slow
def test_the_cost_of_a_picture_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pictures", "--blocks", "1", "--requests", "1", "--markdown"])
    pictures.main()
    shown = capsys.readouterr().out
    assert shown.count("| PNG") == shown.count("| JPEG") == shown.count("| WEBP") == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", ["calls", "text"])
def test_the_cost_of_recordings_is_measured(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(app, "Captures", recording.Timed)
    it = asyncio.run(recording.measure(case, blocks=2, requests=1, concurrency=1, tokens=8))
    # The lower ends of the intervals may be below 0: two blocks say little on a busy machine.
    assert it.case == case and min(it.plain, it.recorded, it.writing, it.ratio[1], it.cpu_ratio[1]) > 0
    assert 0 < it.share < 1
