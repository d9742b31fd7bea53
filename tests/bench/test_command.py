"""`dovetail bench` as a command, against a server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.bench.figures import Acceptance, Calls, Cell, KindTokens, Ratio, Times, WarmUp
from dovetail.bench.plan import Plan
from dovetail.bench.result import Client, Result, commit, versions
from dovetail.bench.runner import Run
from dovetail.cli import bench, main
from dovetail.client.transport import HttpTransport
from tests.bench.scripted import Scripted
from tests.verify.harness import gateway, served

KEY = "sk-a-key-that-nobody-may-see"
SMALL = ["--matrix", "96 x 2", "--tokens", "8", "--requests", "2", "--seed", "1", "--kinds", "calls"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that needs the key."""
    with served(gateway(api_key=KEY)) as served_url:
        yield served_url


@pytest.fixture
def key(tmp_path: Path) -> list[str]:
    (tmp_path / "key").write_text(f"{KEY}\n")
    return ["--api-key-file", str(tmp_path / "key")]


def test_a_run_prints_its_cells_and_goes_on(
    url: str, key: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", url, *SMALL, *key, "--resume", str(tmp_path / "cells")]
    main([*words, "--json"])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    cells = result["cells"]
    assert {cell["endpoint"] for cell in cells} == {url} and {cell["concurrency"] for cell in cells} == {2}
    assert result["plan"]["seed"] == 1 and result["client"]["cpu_share"] > 0
    assert KEY not in printed.out + printed.err + (tmp_path / "cells").read_text()
    assert all(cell["ttft_ms"]["p50"] > 0 for cell in cells if cell["because"] is None), cells
    main([*words, "--html", str(tmp_path / "page.html")])
    assert "dovetail bench" in (tmp_path / "page.html").read_text()
    assert "drafts" in capsys.readouterr().out or any(cell["because"] for cell in cells)


@pytest.mark.slow
def test_without_an_endpoint_the_demo_model_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--matrix", "96 x 1", "--tokens", "4", "--requests", "2", "--kinds", "prose", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["speculation"] for cell in cells] == ["off", "fixed", "gated"]


def test_a_demo_model_that_does_not_start_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["bench"]) == 2
    assert "the demo model does not start: exit code 1" in capsys.readouterr().err


def test_an_endpoint_that_is_down_leaves_its_cells_empty(
    url: str, key: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "http://127.0.0.1:9", *SMALL]) == 2
    assert "not measured, because it cannot be reached" in capsys.readouterr().out
    assert main(["bench", url, *SMALL]) == 2
    assert "a key is needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"stop": 3}, "an answer ended after 3 of 8 tokens"),
        ({"stop": 3, "refuses": ("dovetail", "ignore_eos")}, "it refuses ignore_eos, and an answer ended after 3 of 8"),
        ({"context": 100}, "its context of 100 tokens has no room for 96 and 8"),
        ({"status": 429}, "it limits rates (429)"),
        ({"usage": "none"}, "its streams have no usage"),
        ({"refuses": ("dovetail", "ignore_eos")}, None),
    ],
)
def test_each_hindrance_has_its_reason_and_no_figure(
    script: dict[str, Any], reason: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where `ignore_eos` is refused, and the answers have their length anyway, there are figures."""
    quick = {"first": 0.001, "token": 0.0005, **script}
    monkeypatch.setattr(bench, "HttpTransport", lambda *arguments: Scripted(**quick))
    words = ["bench", "http://a:1", *SMALL[:-1], "prose"]
    assert main([*words, "--json"]) == (0 if reason is None else 2)
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    if reason is None:
        assert cell["because"] is None and cell["ttft_ms"]["p50"] > 0
    else:
        assert reason in cell["because"] and cell["decode_tokens_per_second"] is cell["ttft_ms"] is None
        main(words)
        assert f"not measured, because {reason}" in capsys.readouterr().out


def test_where_calls_are_refused_prose_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is the endpoint's own, and is said once; that is no failure, unless nothing is left."""
    script = {"first": 0.001, "token": 0.0005, "refuses": ("dovetail", "tools")}
    monkeypatch.setattr(bench, "HttpTransport", lambda *arguments: Scripted(**script))
    words = ["bench", "http://a:1", "--matrix", "96,128 x 1", "--tokens", "8", "--requests", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    reason = "it refuses a request that requires a call of a tool: 400: tools is unknown"
    assert f"\ncalls: not measured, because {reason}\n" in shown and shown.count(reason) == 1
    assert main([*words, "--kinds", "calls"]) == 2
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["because"] for cell in cells] == [None, reason, None, reason]


def test_calls_that_do_not_fit_a_short_prompt_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "HttpTransport", lambda *arguments: Scripted(first=0.001, token=0.0005, of_tools=100))
    words = ["bench", "http://a:1", "--matrix", "96 x 1", "--tokens", "8", "--requests", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert (
        "96 x 1 calls, drafting unknown: not measured, because its shortest prompt has 125 tokens, more than 96"
        in shown
    )
    assert main([*words, "--kinds", "calls"]) == 2


def test_a_result_names_the_commit_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions()["python"].startswith("3.") and set(versions()) == {"aiohttp", "msgspec", "python"}
    described = commit()
    assert described is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", described)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert commit() is None


def test_the_docs_name_every_field_of_a_result() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    types = (Result, Plan, Cell, Times, Calls, Acceptance, KindTokens, WarmUp, Ratio, Client)
    assert [name for each in types for name in each.__struct_fields__ if f'"{name}"' not in docs] == []


def test_a_run_that_is_stopped_prints_what_it_has(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stopped(run: Run, *arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "run", stopped)
    assert main(["bench", "http://127.0.0.1:9", *SMALL]) == 130
    assert "the run was stopped before" in capsys.readouterr().out


def test_ctrl_c_keeps_the_cells_and_resume_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waves, wave = 0, Run._wave

    async def interrupted(*arguments: Any) -> None:
        nonlocal waves
        waves += 1
        if waves == 4:  # the first of the second cell
            signal.raise_signal(signal.SIGINT)
        await wave(*arguments)

    monkeypatch.setattr(bench, "HttpTransport", lambda *arguments: Scripted(first=0.001, token=0.0005))
    monkeypatch.setattr(Run, "_wave", interrupted)
    words = ["bench", "http://a:1", "--matrix", "96,120 x 2", *SMALL[2:-1], "prose", "--json"]
    words += ["--resume", str(tmp_path / "cells")]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in background
    try:
        assert main(words) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    first, second = json.loads(capsys.readouterr().out)["cells"]
    assert first["because"] is None and second["because"] == "the run was stopped before it was measured"
    assert main(words) == 0
    again, measured = json.loads(capsys.readouterr().out)["cells"]
    assert again == first and measured["because"] is None and waves == 4 + 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://127.0.0.1:9", "--matrix", "1k"], "--matrix must be"),
        (["http://127.0.0.1:9", "--kinds", "poetry"], "--kinds knows prose and calls"),
        (["http://127.0.0.1:9", "--tokens", "1"], "--tokens must be 2 or more"),
        (["http://127.0.0.1:9", "http://127.0.0.1:9/v1"], "same endpoint"),
        (["ftp://127.0.0.1"], "URL must be one such as"),
    ],
)
def test_bad_input_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_stream_that_repeats_the_key_keeps_its_length_and_not_the_key() -> None:
    body = f"data: {KEY}\n\n".encode()

    async def repeat(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def timed(address: str) -> Any:
        transport = HttpTransport(address, KEY, 20)
        try:
            return await transport.timed("POST", "/", b"{}")
        finally:
            await transport.close()

    with served(repeat) as address:
        arrival = asyncio.run(timed(address))
    assert KEY.encode() not in arrival.reply.body and len(arrival.reply.body) == len(body) == arrival.pieces[-1][1]
