"""`--watch`: the shares of a served gateway's traffic, from its own /metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import HttpTransport, Reply
from dovetail.verify import live
from dovetail.verify.suites import Protocol
from tests.verify.broken import CallsAnything
from tests.verify.harness import AppTransport, Only, endpoint, gateway, verified


def watched(transport: AppTransport, readings: int = 1) -> list[dict[str, float | None]]:
    reports: list[dict[str, float | None]] = []

    async def sleep(seconds: float) -> None:
        assert seconds == 5

    async def run() -> None:
        await live.watch(
            endpoint(transport), 5, readings, lambda of: reports.append({s.name: s.value for s in of}), sleep
        )

    asyncio.run(run())
    return reports


def test_faulty_calls_of_real_traffic_are_an_alarm() -> None:
    transport = AppTransport(gateway(CallsAnything(), strict="off"))
    verified(endpoint(transport), suites=[Only(Protocol(), "call/auto", "finish/stop")])
    first, second = watched(transport, 2)
    assert first["calls that do not validate"] == 1 and (first["defects per answer"] or 0) > 0
    assert 0 < (first["accepted drafts"] or 0) <= 1
    assert set(second.values()) == {None}  # nothing was answered meanwhile


def test_sound_traffic_is_no_alarm() -> None:
    transport = AppTransport(gateway())
    verified(endpoint(transport), suites=[Only(Protocol(), "call/", "history/")])
    (report,) = watched(transport)
    assert report["calls that do not validate"] == report["schema mismatches"] == report["defects per answer"] == 0
    assert (report["repairs per answer"] or 0) > 0


def test_a_counter_that_fell_began_again() -> None:
    before, after = {"dovetail_calls_total": 9.0, "#faulty": 5.0}, {"dovetail_calls_total": 4.0, "#faulty": 1.0}
    assert live.shares(before, after)[0] == live.Share("calls that do not validate", 0.25, 4)


@pytest.mark.parametrize(
    ("status", "page", "reason"),
    [
        (404, b"", "answers 404"),
        (200, b"# TYPE x counter\nx 1\n", "is not a Dovetail gateway's"),
        (200, b"<html> {", "is not in Prometheus' text format"),
    ],
)
def test_another_page_is_not_read(status: int, page: bytes, reason: str) -> None:
    with pytest.raises(NotTested, match=reason):
        watched(AppTransport(gateway(), lambda path, body, reply: Reply(status, {}, page)))


@pytest.mark.parametrize(("model", "code"), [(None, 0), (CallsAnything(), 1)])
def test_the_command_ends_with_1_after_an_alarm(
    model: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = AppTransport(gateway(model, strict="off"))
    verified(endpoint(transport), suites=[Only(Protocol(), "call/auto")])
    monkeypatch.setattr(HttpTransport, "send", lambda self, *arguments: transport.send(*arguments))
    command = ["verify", "http://app", "--watch", "5", "--readings", "1"]
    assert main([*command, "--json"]) == code
    line = json.loads(capsys.readouterr().out)
    assert {share["name"] for share in line["shares"]} == {name for name, _, _ in live.SHARES}
    assert bool(line["alarms"]) == bool(code)
    assert main([*command, "--alarm", "1"]) == 0
    assert "calls that do not validate" in capsys.readouterr().out


def test_a_gateway_without_metrics_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "http://127.0.0.1:9", "--watch", "5"]) == 2
    assert "live not tested, because it cannot be reached" in capsys.readouterr().err
