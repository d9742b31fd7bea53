"""Every figure of a server with known times comes out as it is; what cannot be measured is empty, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.bench import figures
from dovetail.bench.figures import Calls, Cell
from dovetail.bench.plan import Kind, Plan, parse_matrix
from dovetail.bench.result import Header, ResumeFile
from dovetail.bench.runner import Run, ratios
from dovetail.bench.target import Target
from dovetail.bench.timing import Sample
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.errors import InvalidRequest
from tests.bench.scripted import Scripted, in_no_time


def plan(contexts: Sequence[int] = (100,), concurrencies: Sequence[int] = (1,), **changes: Any) -> Plan:
    kinds: tuple[Kind, ...] = changes.pop("kinds", ("prose",))
    return Plan(tuple(contexts), tuple(concurrencies), kinds, changes.pop("tokens", 31), 4, 1, **changes)


def target(server: Scripted, shared_prefix: bool = False, **limits: Any) -> Target:
    endpoint = Endpoint(server, f"http://{id(server)}", limits=Limits(**limits))
    return Target(endpoint, server, shared_prefix=shared_prefix)


def measured(of: Plan, *servers: Scripted, cells: Sequence[Cell] = (), **limits: Any) -> list[Cell]:
    run = Run(of, [target(server, of.shared_prefix, **limits) for server in servers], cells)

    async def main() -> None:
        await run.prepare()
        await run.run(lambda done, shown: None, lambda cells: None)

    in_no_time(main())
    return run.everything()


def median(times: Any) -> float:
    assert times is not None and times.p50_interval.low <= times.p50 <= times.p50_interval.high
    return float(times.p50)


@pytest.mark.parametrize(
    ("concurrency", "burst", "usage"), [(1, 1, "every"), (1, 3, "every"), (1, 3, "end"), (64, 3, "every")]
)
def test_known_times_come_out(concurrency: int, burst: int, usage: str) -> None:
    server = Scripted(burst=burst, usage=usage)
    (cell,) = measured(plan(concurrencies=(concurrency,)), server)
    assert cell.because is None and cell.requests == max(4, 2 * concurrency)
    assert median(cell.ttft_ms) == median(cell.answer_ms) == pytest.approx(50)
    assert median(cell.tpot_ms) == pytest.approx(10)
    assert median(cell.decode_tokens_per_second) == pytest.approx(100)
    assert cell.decode_tokens_per_second_all == pytest.approx(100 * concurrency)
    assert median(cell.gap_ms) == pytest.approx(10 * burst)
    assert median(cell.prefill_tokens_per_second) == pytest.approx(100 / 0.05)
    assert median(cell.end_to_end_ms) == pytest.approx(50 + 10 * (31 - burst))
    assert cell.first_delta_estimated == (usage == "end")
    assert server.most_at_once == concurrency


def test_what_one_decodes_beside_anothers_prompt_is_no_speed_of_all() -> None:
    """The first decodes a token a second while the other's prompt is read, then both ten."""

    def sample(*marks: tuple[float, int]) -> Sample:
        return Sample(marks, marks[0][0], marks[-1][0], False, 100, 0)

    first = sample(*((1.0 + i, 1 + i) for i in range(10)), *((10 + i / 10, 10 + i) for i in range(1, 21)))
    other = sample(*((10 + i / 10, 1 + i) for i in range(26)))
    cell = figures.measured(Cell("a", 100, 2, "prose", "unknown"), [first], [[first, other]], Calls(), ())
    assert cell.decode_tokens_per_second_all == pytest.approx(20)
    alone = figures.measured(Cell("a", 100, 1, "prose", "unknown"), [first], [[sample((1.0, 5))]], Calls(), ())
    assert alone.decode_tokens_per_second_all is None


@pytest.mark.parametrize(("burst", "late"), [(16, 0), (17, 4), (31, 4)])
def test_text_that_is_held_back_is_no_time_of_prefill(burst: int, late: int) -> None:
    (cell,) = measured(plan(), Scripted(burst=burst))
    assert cell.late_first_deltas == late and median(cell.ttft_ms) == pytest.approx(50)
    assert (cell.prefill_tokens_per_second is None) == bool(late) == ("holds text back" in str(cell.late_answers))
    assert (cell.decode_tokens_per_second is None) == (burst == 31)


@pytest.mark.parametrize("tokenizes", [True, False])
def test_prompts_have_their_length_and_distinct_beginnings(tokenizes: bool) -> None:
    server = Scripted(tokenizes=tokenizes)
    cells = measured(plan((100, 1000), (1, 4), kinds=("prose", "calls")), server)
    assert [cell.prompt_tokens for cell in cells] == [(length, length) for length in (100, 1000) for _ in range(4)]
    beginnings = [prompt.split(".")[0] for prompt in server.prompts if "." in prompt]
    assert len(beginnings) == len(set(beginnings)) > 40


def test_prompts_may_share_their_beginning() -> None:
    server = Scripted()
    (cell,) = measured(plan((200,), shared_prefix=True), server)
    assert cell.prompt_tokens == (200, 200)
    timed = [body["messages"][0]["content"] for body in server.bodies if body.get("ignore_eos")][-5:]
    beginnings = {text.split(".")[0] for text in timed}
    assert len(set(timed)) == 5 and len({text[:400] for text in beginnings}) == 1


def test_drafting_on_and_off_are_paired() -> None:
    cells = measured(plan(concurrencies=(2,)), Scripted(drafts=True, refuses=()))
    assert [cell.speculation for cell in cells] == ["off", "fixed", "gated"]
    assert [median(cell.tpot_ms) for cell in cells] == [pytest.approx(10), pytest.approx(5), pytest.approx(5)]
    off, _, gated = cells
    assert off.acceptance_length == 1 and gated.acceptance_length == pytest.approx(1 + 16 / 15)
    assert gated.acceptance is not None and gated.acceptance.forced == 4
    found = {tuple(name.split()[1] for name in (each.numerator, each.denominator)): each for each in ratios(cells)}
    assert {names: each.decode for names, each in found.items()} == {
        ("fixed", "off"): pytest.approx(2),
        ("gated", "off"): pytest.approx(2),
        ("gated", "fixed"): pytest.approx(1),
    }
    ratio = found["gated", "off"]
    assert ratio.interval.low == pytest.approx(ratio.interval.high)


def test_vllm_reports_acceptance_by_position() -> None:
    (cell,) = measured(plan(), Scripted())
    assert cell.speculation == "unknown" and cell.acceptance is not None
    assert cell.acceptance.length == 1 + 5 / 4 and cell.acceptance.by_position == (3 / 4, 2 / 4)


def test_vllms_counters_show_acceptance_where_its_answers_do_not() -> None:
    (cell,) = measured(plan(concurrencies=(2,)), Scripted(counters=True))
    assert cell.acceptance is not None and cell.acceptance.of_all_clients
    assert cell.acceptance.length == 1 + 5 / 4 == cell.acceptance_length
    assert cell.acceptance.by_position == (3 / 4, 2 / 4)


def test_two_endpoints_are_measured_in_turns() -> None:
    cells = measured(plan(), Scripted(), Scripted(token=0.02))
    (ratio,) = ratios(cells)
    assert ratio.decode == pytest.approx(0.5)


def test_the_warm_up_is_in_no_figure() -> None:
    (cell,) = measured(plan(), Scripted(slow=5.0))
    assert cell.ttft_ms is not None and cell.ttft_ms.p99 == pytest.approx(50)
    assert cell.warm_up is not None and cell.warm_up.ttft_ms == pytest.approx(5050) and cell.warm_up.requests == 1


def test_calls_are_checked_while_they_are_timed() -> None:
    (right,) = measured(plan(kinds=("calls",)), Scripted())
    assert (right.calls.checked, right.calls.wrong) == (5, 0)
    for arguments in ('{"city": ', '{"city": 1}', "{}"):
        (cell,) = measured(plan(kinds=("calls",)), Scripted(arguments=arguments))
        assert (cell.calls.checked, cell.calls.wrong) == (5, 5) and "its arguments" in str(cell.calls.because)
        assert median(cell.ttft_ms) == pytest.approx(50)


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ({"usage": "none"}, "no usage"),
        ({"stop": 12}, "ended after 12 of 31 tokens"),
        ({"context": 120}, "context of 120 tokens has no room"),
        ({"status": 429}, "limits rates"),
        ({"status": 500}, "answered 500: no"),
        ({"refuses": ("model",)}, "refuses a plain request: 400"),
        ({"usage": "none", "tokenizes": False}, "no usage"),
    ],
)
def test_what_cannot_be_measured_is_empty(script: dict[str, Any], because: str) -> None:
    (cell,) = measured(plan(), Scripted(**script))
    assert because in str(cell.because) and cell.decode_tokens_per_second is None


def test_a_cell_too_short_for_its_task_is_empty_and_others_are_not() -> None:
    short, fits = measured(plan((12, 100)), Scripted())
    assert "its shortest prompt has" in str(short.because) and fits.because is None


@pytest.mark.parametrize("refused", ["ignore_eos", "continuous_usage_stats", "temperature"])
def test_an_endpoint_without_a_field_is_measured_without_it(refused: str) -> None:
    server = Scripted(refuses=(refused, "dovetail"), usage="end")
    (cell,) = measured(plan(), server)
    assert cell.because is None and not any(refused in str(body) for body in server.bodies)


def test_the_load_is_bounded() -> None:
    server = Scripted()
    (cell,) = measured(plan(), server, max_requests=9)
    assert "--max-requests" in str(cell.because)


def test_a_run_goes_on_with_what_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "cells"
    header = Header(("http://a",), (None,), plan())
    cells = measured(plan(), server := Scripted())
    ResumeFile(file, header).add(cells)
    with file.open("ab") as end:
        end.write(b'{"killed')
    again = ResumeFile(file, header)
    assert again.cells == cells
    run = Run(plan(), [target(server)], again.cells)
    assert run.requests == 0
    with pytest.raises(InvalidRequest, match="other URLs, models or plan"):
        ResumeFile(file, Header(("http://b",), (None,), plan()))
    file.write_text("something\n")
    with pytest.raises(InvalidRequest, match="choose another"):
        ResumeFile(file, header)


def test_a_run_that_was_stopped_has_its_cells() -> None:
    run = Run(plan((100, 200)), [target(Scripted())])

    async def main() -> None:
        await run.prepare()
        await run.run(lambda done, shown: None, stop)

    def stop(cells: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_no_time(main())
    first, second = run.everything()
    assert first.because is None and "stopped before" in str(second.because)


def test_a_matrix_is_contexts_and_concurrencies() -> None:
    assert parse_matrix("1k,8K, 300 x 1,4") == ((1024, 8192, 300), (1, 4))
    assert parse_matrix("1k,1024×2") == ((1024,), (2,))
    for wrong in ("1k", "1k x", "x 1", "1k x 0", "0 x 1", "1m x 1", "1k x 5000", "1k x 1 x 2", "99999999k x 1"):
        with pytest.raises(InvalidRequest, match="--matrix"):
            parse_matrix(wrong)
