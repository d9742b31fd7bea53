"""Jobs that arrive: their figures on a clock that waits for nobody, and what they send."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.bench import load as load_module
from dovetail.bench.knee import Knee, find_knee
from dovetail.bench.load import Load, LoadFigures, LoadRun
from dovetail.bench.plan import ServiceLevel
from dovetail.bench.workload import WORKLOADS, Job, Turn, from_trace, jobs, scaled
from dovetail.cli import main
from dovetail.cli.recorded_jobs import recorded_jobs
from dovetail.client.not_tested import NotTested
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import RecordedPrompt, RecordedStep, Recording, Token
from tests.bench.scripted import PROBE, Scripted, in_no_time
from tests.bench.test_known_times import median, target
from tests.verify.harness import gateway, served


def one(tokens: int = 31, **changes: Any) -> Job:
    return Job("own", (Turn(20, tokens),), **changes)


def figures(
    server: Scripted, work: Sequence[Job], load: Load, level: ServiceLevel | None = None, **limits: Any
) -> LoadFigures:
    async def run() -> LoadFigures:
        of = target(server, **limits)
        await of.prepare()
        return await LoadRun(of, work, load, 1, lambda: None).run(level)

    return in_no_time(run())  # type: ignore[no-any-return]


def timed(server: Scripted) -> list[Any]:
    """The requests but those by which the client found out what the server takes."""
    return [body for body in server.bodies if body["max_tokens"] != PROBE]


def test_so_many_jobs_at_once() -> None:
    server = Scripted()
    measured = figures(server, [one()] * 8, Load("concurrency", 2))
    assert (measured.jobs, measured.requests, measured.most_at_once) == (8, 8, 2)
    assert median(measured.ttft_ms) == pytest.approx(50) and median(measured.tpot_ms) == pytest.approx(10)
    assert median(measured.end_to_end_ms) == median(measured.job_ms) == pytest.approx(350)
    assert measured.seconds == pytest.approx(4 * 0.35) and measured.late_ms is not None
    assert measured.answer_tokens_per_second == pytest.approx(8 * 31 / 1.4)
    assert measured.acceptance is not None and measured.acceptance.length == 1 + 5 / 4


def test_a_trace_is_replayed_at_its_times() -> None:
    server = Scripted()
    measured = figures(server, [one(start=at) for at in (0.0, 1.0, 4.0)], Load("trace", 2))
    assert [each - server.sent[0] for each in server.sent] == pytest.approx([0, 0.5, 2])
    assert measured.because is None and measured.most_at_once == 1


def test_a_stall_is_in_the_times_of_all_that_came_meanwhile() -> None:
    """No coordinated omission: what was due while the server stood still is sent, and waits."""
    server = Scripted(stall=(3.0, 5.0))
    measured = figures(server, [one(2)] * 200, Load("rate", 20))
    expected = sorted(50 + (1000 * (5 - at) if 3 <= at < 5 else 0) for at in server.sent)
    waited = sum(value > 50 for value in expected)
    assert 20 <= waited <= 60 and measured.ttft_ms is not None
    assert measured.ttft_ms.p50 == pytest.approx(50)
    assert measured.ttft_ms.p90 == pytest.approx(expected[179], abs=100) and measured.ttft_ms.p90 > 500
    one_by_one = figures(Scripted(stall=(3.0, 5.0)), [one(2)] * 200, Load("concurrency", 1))
    assert one_by_one.ttft_ms is not None and one_by_one.ttft_ms.p90 == pytest.approx(50)


def test_random_arrivals_have_their_rate() -> None:
    server = Scripted()
    figures(server, [one(2)] * 400, Load("rate", 8))
    gaps = [later - earlier for earlier, later in zip(server.sent, server.sent[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 8, rel=0.2)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.1), "exponential"


def test_turns_carry_answers_and_results_and_wait() -> None:
    server = Scripted()
    job = Job("own", (Turn(20, 64, calls=True), Turn(5, 64, 2.5, calls=True), Turn(5, 10, 40.0)), shared_tokens=12)
    measured = figures(server, [job], Load("concurrency", 1))
    first, second, third = timed(server)
    roles = [message["role"] for message in third["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert third["messages"][:4] == second["messages"] and second["messages"][:2] == first["messages"]
    assert len(first["messages"][0]["content"].split()) == 12
    called = second["messages"][2]["tool_calls"][0]
    assert second["messages"][3]["tool_call_id"] == called["id"]
    assert [body["tool_choice"] for body in timed(server)] == ["required", "required", "none"]
    assert first["tools"] == third["tools"]
    assert measured.calls.checked == 2 and measured.calls.wrong == 0
    took = [0.05 + 0.63, 0.05 + 0.63]
    assert server.sent[1] - server.sent[0] == pytest.approx(took[0] + 2.5)
    assert server.sent[2] - server.sent[1] == pytest.approx(took[1] + 40)


def test_wrong_calls_are_counted() -> None:
    job = Job("own", (Turn(20, 64, calls=True),))
    measured = figures(Scripted(arguments="{}"), [job] * 3, Load("concurrency", 1))
    assert (measured.calls.checked, measured.calls.wrong) == (3, 3)


def test_goodput_counts_failed_requests_and_lateness() -> None:
    level = ServiceLevel(ttft=60, e2el=400)
    sound = figures(Scripted(), [one()] * 4, Load("concurrency", 2), level)
    assert sound.goodput is not None and sound.goodput.share == 1
    server = Scripted(stall=(0.5, 1.0))
    measured = figures(server, [one()] * 4, Load("concurrency", 2), level)
    assert measured.goodput is not None and measured.goodput.share == 0.5
    assert measured.goodput.requests_per_second == pytest.approx(2 / measured.seconds)


@pytest.mark.parametrize(("script", "because"), [({"status": 429}, "limits rates"), ({"status": 500}, "500")])
def test_failed_requests_are_counted_by_reason(script: dict[str, Any], because: str) -> None:
    measured = figures(Scripted(**script), [one()] * 3, Load("concurrency", 1))
    assert because in str(measured.because) and [*measured.failed.values()] == [3]


def test_the_load_is_bounded() -> None:
    measured = figures(Scripted(), [one()] * 30, Load("concurrency", 1), max_requests=20)
    assert 0 < measured.requests < 20 and any("--max-requests" in reason for reason in measured.failed)


def test_an_endpoint_that_does_not_keep_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_MOST_AT_ONCE", 16)
    server = Scripted(first=1000.0)
    measured = figures(server, [one()] * 100, Load("rate", 1000))
    assert "16 requests are waiting at once" in str(measured.because) and len(server.sent) == 16


@pytest.mark.slow
def test_the_knee_is_where_a_server_stops_keeping_its_level() -> None:
    level, work = ServiceLevel(ttft=500), [one(6)] * 300  # a request takes 0.1 s, and none beside another

    async def search() -> tuple[Knee, list[LoadFigures]]:
        tried: list[LoadFigures] = []

        async def at(rate: float) -> LoadFigures:
            of = target(Scripted(serial=True))
            await of.prepare()
            tried.append(await LoadRun(of, work, Load("rate", rate), 1, lambda: None).run(level))
            return tried[-1]

        return await find_knee(1.0, at), tried

    knee, tried = in_no_time(search())
    assert knee.rate is not None and knee.missed is not None
    assert 4 < knee.rate < knee.missed < 16 and knee.missed / knee.rate < 1.06
    shares = {each.load.value: each.goodput.share for each in tried if each.goodput is not None}
    assert shares[knee.rate] >= 0.95 > shares[knee.missed]


def test_a_level_that_no_rate_keeps_has_no_knee() -> None:
    async def at(rate: float) -> LoadFigures:
        return LoadFigures("a", Load("rate", rate), because="1024 requests are waiting at once", kept_up=False)

    knee = in_no_time(find_knee(1.0, at))
    assert knee.rate is None and knee.missed is not None and knee.missed < 0.001


def test_an_endpoint_that_went_down_has_no_knee_either() -> None:
    async def at(rate: float) -> LoadFigures:
        return LoadFigures("a", Load("rate", rate), because="it cannot be reached")

    with pytest.raises(NotTested, match="it cannot be reached"):
        in_no_time(find_knee(1.0, at))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_the_same_seed(name: str) -> None:
    assert jobs(name, 5, 1) == jobs(name, 5, 1) != jobs(name, 5, 2)
    assert all(turn.new_tokens > 0 and turn.answer_tokens > 0 for job in jobs(name, 50, 3) for turn in job.turns)


def test_a_coding_agents_sessions_are_as_published() -> None:
    sessions = jobs("agentic", 200, 1)
    prompts = [32_000 + sum(turn.new_tokens + turn.answer_tokens for turn in job.turns[:-1]) for job in sessions]
    assert max(prompts) < 167_000 + 48_000 and all(not job.turns[-1].calls for job in sessions)
    later = [turn for job in sessions for turn in job.turns[1:]]
    assert 5_000 < sorted(turn.new_tokens for turn in later)[len(later) // 2] < 7_000
    assert sum(turn.pause > 10 for turn in later) / len(later) == pytest.approx(0.24, abs=0.06)


def test_a_scaled_job_has_room_for_its_calls() -> None:
    job = scaled(Job("own", (Turn(100, 1000, 0.0, True), Turn(100, 1000, 4.0)), 1000, (), 8.0), 0.01, 0.5)
    assert [(turn.new_tokens, turn.answer_tokens, turn.pause) for turn in job.turns] == [(1, 64, 0), (1, 10, 2)]
    assert job.shared_tokens == 10 and job.start == 4


def test_traces_share_the_text_of_equal_blocks() -> None:
    lines = [
        json.dumps({"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}),
        "",
        json.dumps({"timestamp": 3000, "input_length": 1200, "output_length": 6, "hash_ids": [7, 5, 3]}),
    ]
    work = from_trace(lines, 9)
    assert [(job.start, job.blocks, job.turns[0].answer_tokens) for job in work] == [(0, (7, 8), 5), (2, (7, 5), 6)]
    server = Scripted()
    measured = figures(server, work, Load("trace", 1))
    first, second = ([*body["messages"][0]["content"].split("\n")] for body in timed(server))
    assert first[0] == second[0] and first[1] != second[1] and len(first[0].split()) == 512
    assert measured.prompt_tokens == pytest.approx(2300, abs=60)
    assert len(from_trace(lines, 1)) == 1


def test_lines_of_one_session_are_turns_of_a_job() -> None:
    lines = [
        '{"session_id": "a", "input_length": 30, "output_length": 4}',
        '{"session_id": "b", "input_length": 20, "output_length": 5, "timestamp": 1000}',
        '{"session_id": "a", "input_length": 10, "output_length": 1, "delay": 2500}',
        '{"session_id": "c", "input_length": 40, "output_length": 4}',
    ]
    first, second = from_trace(lines, 2)
    assert first.turns == (Turn(30, 4), Turn(10, 2, 2.5)) and second.turns == (Turn(20, 5),) and second.start == 1


def test_recordings_are_a_trace(tmp_path: Path) -> None:
    def write(name: str, began: str, prompt: int, steps: Sequence[int]) -> None:
        recording = Recording(
            id=name,
            request_id=name,
            api="chat",
            model="m",
            began=f"2026-11-23T12:00:{began}Z",
            prompt=RecordedPrompt(prompt),
            steps=tuple(
                RecordedStep(0, 0.1, tuple(Token(1, "a") for _ in range(count)), 0, 0, 0, 0, ()) for count in steps
            ),
        )
        (tmp_path / f"{name}.recording.json").write_bytes(msgspec.json.encode(recording))

    write("a", "03.500", 30, (1, 3))
    write("b", "01.000", 20, (1,))
    write("c", "09.000", 40, ())  # without an answer
    found = recorded_jobs(tmp_path, 5)
    assert [(job.start, job.turns) for job in found] == [(0.0, (Turn(20, 2),)), (2.5, (Turn(30, 4),))]
    assert len(recorded_jobs(tmp_path, 1)) == 1
    with served(gateway()) as url:
        assert main(["bench", url, "--workload", str(tmp_path), "--replay", "100"]) == 0
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(InvalidRequest, match="has no recording"):
        recorded_jobs(tmp_path, 5)


def test_a_load_that_is_stopped_keeps_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count, request = 0, LoadRun._request

    async def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)
        return await request(*arguments, **options)

    monkeypatch.setattr(LoadRun, "_request", interrupted)
    words = ["--jobs", "9", "--scale", "0.02", "--concurrency", "1", "--seed", "1", "--json"]
    with served(gateway()) as url:
        assert main(["bench", url, "--workload", "batch", *words]) == 130
    result = json.loads(capsys.readouterr().out)
    assert result["loads"][0]["requests"] == 2 and result["loads"][0]["ttft_ms"]["n"] == 2


@pytest.mark.parametrize(
    "line",
    [
        "x",
        '{"input_length": 1, "output_length": 1, "delay": -1}',
        "[]",
        "{}",
        '{"input_length": 0, "output_length": 1}',
        '{"input_length": 1, "output_length": 100000000}',
        '{"input_length": 1, "output_length": 1, "timestamp": 1e300}',
        '{"input_length": "1", "output_length": 1}',
    ],
)
def test_a_trace_with_a_bad_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest, match="line 1 of the trace"):
        from_trace([line], 5)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no line"):
        from_trace(["", " "], 5)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--jobs", "2", "--scale", "0.02", "--pauses", "0.001", "--seed", "1", "--goodput", "ttft:60000"]
    with served(gateway()) as url:
        assert main(["bench", url, "--workload", "chat", *words, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["loads"][0]["goodput"]["share"] == 1 and result["workload"] == "chat"
        (tmp_path / "trace").write_text('{"input_length": 40, "output_length": 4}\n' * 3)
        assert main(["bench", url, "--workload", str(tmp_path / "trace"), "--jobs", "2", "--replay", "10"]) == 0
        assert "2 requests of 2 jobs" in capsys.readouterr().out
        bounded = ["--find-knee", "--goodput", "ttft:1", "--scale", "0.01", "--max-requests", "20"]
        assert main(["bench", url, "--workload", "batch", *bounded]) == 2
        printed = capsys.readouterr().out
        assert "--max-requests 20 leaves no room for 32 requests more" in printed and "knee" not in printed
        assert main(["bench", "http://127.0.0.1:9", "--workload", "rag", "--max-wait", "0.1"]) == 2
        assert "not measured, because it cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://a:1", "http://b:2", "--workload", "chat"], "one endpoint"),
        (["http://a:1", "--workload", "nothing"], "none of agentic, batch, chat, rag, and no trace file"),
        (["http://a:1", "--workload", "chat", "--replay", "1"], "needs a trace file"),
        (["http://a:1", "--workload", "chat", "--resume", "file"], "--resume goes on with a matrix"),
        (["http://a:1", "--workload", "chat", "--find-knee"], "needs the limits"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
