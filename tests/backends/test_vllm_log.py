"""Reading vLLM's log. vLLM 0.32 wrote the files of `vllm_logs/`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.supervised.engine import CRASH_WINDOW_S, MOST_CRASHES, restart_delay
from dovetail.backends.supervised.program import Progress, ending
from dovetail.backends.vllm.advice import advice, nearest, unknown
from dovetail.backends.vllm.log import failure, last, progress

LOGS = Path(__file__).parent / "vllm_logs"
WORKER = "(Worker pid=19183) INFO 11-22 07:55:41 "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (WORKER + "[cpu_model_runner.py:68] Starting to load model /models/target...", Progress("load")),
        (WORKER + "[gpu_model_runner.py:5071] Loading drafter model...", Progress("load")),
        (
            "Loading safetensors checkpoint shards:  45% Completed | 28/62 [00:31<00:38,  1.13s/it]",
            Progress("load", 28, 62),
        ),
        (
            "(EngineCore pid=3) Loading safetensors checkpoint shards: 100% Completed | 62/62 [01:11<00:00]",
            Progress("load", 62, 62),
        ),
        ("Multi-thread loading shards:  10% Completed | 3/30 [00:01<00:09]", Progress("load", 3, 30)),
        (
            "Loading safetensors using Runai Model Streamer:  50%|█████     | 200/400 [00:05]",
            Progress("load", 200, 400),
        ),
        (WORKER + "[backends.py:637] Dynamo bytecode transform time: 8.59 s", Progress("compile")),
        (WORKER + "[monitor.py:34] torch.compile took 42.31 s in total", Progress("compile")),
        (WORKER + "[cpu_model_runner.py:87] Warming up model for the compilation...", Progress("compile")),
        (WORKER + "[gpu_worker.py:760] Available KV cache memory: 52.15 GiB", Progress("allocate")),
        (WORKER + "[kv_cache_utils.py:2327] GPU KV cache size: 1,234,567 tokens, Maximum", Progress("allocate")),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  45%|████▍     | 23/51 [00:03<00:03]",
            Progress("capture", 23, 51),
        ),
        (WORKER + "[speculator.py:110] Capturing model for speculator...", Progress("capture")),
        ("INFO:     Application startup complete.", Progress("ready")),
        ("\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m 11-22 07:55:18 [a.py:1] Something else", None),
        ("", None),
    ],
)
def test_a_line_reports_progress(line: str, expected: Progress | None) -> None:
    assert progress(line) == expected


def test_colours_are_ignored() -> None:
    line = (
        "\x1b[0;36m(Worker pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-22 07:55:41\x1b[0m \x1b[90m[a.py:1]\x1b[0m "
    )
    assert progress(line + "Starting to load model x") == Progress("load")


@pytest.mark.parametrize(
    "line", ["Loading " + "shards:1%|" * 400, "Loading " + "shards: 1%| " * 330 + "x", "Capturing " + ":1%|" * 1000]
)
def test_a_line_that_almost_matches_in_many_ways_takes_no_time(line: str) -> None:
    for _ in range(20):
        assert progress(line) in (None, Progress("capture"))


@given(st.lists(st.text()))
def test_any_text_can_be_read(lines: list[str]) -> None:
    for line in lines:
        progress(line)
    failure(lines)
    assert len(last(lines)) <= 8


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.txt").read_text().splitlines()


def test_the_error_is_that_of_the_process_that_failed_first() -> None:
    """The worker's own, and not what three processes made of it."""
    diagnosis = failure(log("not_enough_memory"))
    assert diagnosis is not None
    assert diagnosis.error == (
        "ValueError: Available memory on node 0 (17.5/23.54 GiB) on kv cache allocation is less than requested memory "
        "for kv (900.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by "
        "other processes."
    )
    assert diagnosis.lines[-1] == diagnosis.error
    assert 'cpu_worker.py", line 219' in diagnosis.lines[0]
    assert not diagnosis.drafter
    assert (advice(diagnosis.error) or "").startswith("not enough memory: ")


def test_an_option_that_vllm_does_not_know_is_named() -> None:
    diagnosis = failure(log("unknown_option"))
    assert diagnosis is not None
    assert diagnosis.error == "unrecognized arguments: --enforce-eagr"
    assert unknown(diagnosis.error) == ["--enforce-eagr"]
    assert nearest("--enforce-eagr", ["--enforce-eager", "--block-size"]) == "did you mean --enforce-eager?"
    assert nearest("--xyz", ["--enforce-eager"]) is None


CHAINED = """
Traceback (most recent call last):
  File "/venv/hub.py", line 1, in fetch
    raise RepositoryNotFoundError(message)
huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/vllm/config/model.py", line 7, in __init__
    raise ValueError()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: 'org/nothing'. [type=value_error, input_value=1]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


def test_the_last_of_chained_errors_is_reported() -> None:
    diagnosis = failure(CHAINED.splitlines())
    assert diagnosis is not None
    assert diagnosis.error == "Invalid repository ID or local directory specified: 'org/nothing'."
    assert (advice(diagnosis.error) or "").startswith("no such model")


def test_processes_that_write_at_once_are_told_apart() -> None:
    one, two = "(Worker_TP0 pid=1) ERROR 11-22 07:55:41 [a.py:1] ", "(Worker_TP1 pid=2) ERROR 11-22 07:55:41 [a.py:1] "
    lines = [
        one + "Traceback (most recent call last):",
        two + "Traceback (most recent call last):",
        two + '  File "b.py", line 1, in b',
        one + '  File "a.py", line 1, in a',
        two + "RuntimeError: cancelled because another worker failed; see root cause above",
        one + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
    ]
    diagnosis = failure(lines)
    assert diagnosis is not None
    assert diagnosis.error == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."


def test_an_error_while_the_drafter_loads_is_the_drafters() -> None:
    lines = [
        WORKER + "[r.py:1] Loading drafter model...",
        "(Worker pid=19183) ERROR 11-22 07:55:41 [m.py:1] Traceback (most recent call last):",
        "(Worker pid=19183) ERROR 11-22 07:55:41 [m.py:1] AssertionError: Attempted to load weight ([64]) into ([32])",
    ]
    diagnosis = failure(lines)
    assert diagnosis is not None and diagnosis.drafter
    assert "--drafter none" in (advice(diagnosis.error, drafter=True) or "")


def test_without_a_traceback_the_last_error_is_told() -> None:
    line = "(APIServer pid=1) ERROR 11-22 07:55:41 [a.py:1] something is off"
    diagnosis = failure(["RuntimeError: broken", line, "two"])
    assert diagnosis is not None and diagnosis.error == "RuntimeError: broken"
    diagnosis = failure(["one", line, "two"])
    assert diagnosis is not None and diagnosis.error == "something is off"
    assert failure(["one", "two"]) is None
    assert last(["one", "", line]) == ("one", "something is off")


def test_an_unknown_error_gets_no_advice() -> None:
    assert advice("RuntimeError: something new") is None


def test_an_exit_code_in_words() -> None:
    assert ending(1) == "exit code 1"
    assert ending(137).startswith("killed (SIGKILL)")
    assert ending(139) == "ended by SIGSEGV"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_the_delay_doubles_until_the_engine_is_given_up(times: list[float]) -> None:
    crashes = sorted(times)
    recent = [crash for crash in crashes if crash > crashes[-1] - CRASH_WINDOW_S]
    delay = restart_delay(crashes)
    assert (delay is None) == (len(recent) >= MOST_CRASHES)
    if delay is not None:
        assert delay == 2 ** (len(recent) - 1)


def test_an_engine_that_crashes_once_a_day_is_always_restarted() -> None:
    assert restart_delay([day * 86400.0 for day in range(100)]) == 1
