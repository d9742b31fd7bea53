"""Log records and access lines reach their reader whole and in order, and a reader that stalls or leaves stops
nobody."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from dovetail.plan import resolve
from dovetail.server import logs
from dovetail.server.logs import logging_in_background, logs_json, write_access_line
from dovetail.server.telemetry import telemetry
from tests.cli.test_serve import free_port
from tests.cli.test_standard_streams import BODY, fill, ready

#: A file that takes no byte.
FULL = Path("/dev/full")
LOG = logging.getLogger("dovetail.test")


def test_records_come_out_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [f"{number}" * (number % 7) for number in range(2_000)]
    with path.open("wb") as file, logging_in_background(json=False, descriptor=file.fileno()):
        for line in lines:
            LOG.warning("%s", line)
        LOG.info("below the level")
        write_access_line(b"nobody asks for these lines")
    assert path.read_text().split("\n") == [*lines, ""]


def test_records_and_access_lines_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest-xdist cannot send a lone surrogate to its controller
    path = tmp_path / "lines"
    with path.open("wb") as file, logging_in_background(json=True, descriptor=file.fileno()):
        LOG.error("line one\nline two %s", "\ud800")
        write_access_line(b'{"path":"/%s"}')
        try:
            raise KeyError("x")
        except KeyError:
            LOG.exception("it failed")
    record, access, failure = map(json.loads, path.read_text().splitlines())
    assert {**record, "time": ""} == {
        "time": "",
        "kind": "log",
        "level": "error",
        "logger": "dovetail.test",
        "message": "line one\nline two ?",
    }
    assert access == {"path": "/%s"}
    assert failure["exception"].endswith("KeyError: 'x'")


def test_access_lines_are_for_json_logs(pair: Path) -> None:
    for plan in (resolve(str(pair / "target"), {}), resolve(str(pair / "target"), {"log_format": "json"})):
        assert telemetry(plan).write_line is (write_access_line if logs_json(plan) else None)


def test_a_record_that_cannot_be_formatted_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    with path.open("wb") as file, logging_in_background(json=True, descriptor=file.fileno()):
        LOG.error("%d", "no number")
        write_access_line(b"next")
    assert path.read_text() == "next\n"
    assert capfd.readouterr() == ("", "")


def test_a_stalled_reader_loses_records_and_stops_nobody(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads later is whole: first what waited, then what comes when there is room again."""
    monkeypatch.setattr(logs, "_MOST_RECORDS", 10)
    source, sink = pipe
    filling = fill(sink)
    began = time.monotonic()
    with logging_in_background(json=False, descriptor=sink):
        for number in range(1_000):
            LOG.warning("record %d", number)
        assert time.monotonic() - began < 30
        with open(source, "rb", closefd=False) as reader:
            reader.read(filling)
            first = [reader.readline() for _ in range(10)]
            assert first == [b"record %d\n" % number for number in range(10)]
            LOG.warning("the last one")
            while reader.readline() != b"the last one\n":
                pass


def test_a_reader_that_leaves_is_no_error(pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]) -> None:
    os.close(pipe[0])
    with logging_in_background(json=False, descriptor=pipe[1]):
        LOG.warning("nobody reads this")
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with FULL.open("wb", buffering=0) as file, logging_in_background(json=False, descriptor=file.fileno()):
        LOG.warning("there is no room for this")
    assert capfd.readouterr() == ("", "")


def test_a_file_that_does_not_block_gets_all_records(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    os.set_blocking(sink, False)
    lines = [f"{number}" * 500 for number in range(1_000)]  # more than a pipe takes
    with logging_in_background(json=False, descriptor=sink):
        for line in lines:
            LOG.warning("%s", line)
        with open(source, encoding="ascii", closefd=False) as reader:
            assert [next(reader) for _ in lines] == [f"{line}\n" for line in lines]


def test_a_stalled_reader_does_not_keep_the_process_alive() -> None:
    """Neither at the end of the context, nor when the interpreter ends."""
    script = """
import logging, os
from dovetail.server import logs
logs._LAST_RECORDS_S = 0.1
with logs.logging_in_background(json=False, descriptor=os.pipe()[1]):
    for _ in range(20_000):
        logging.warning("x" * 1_000)
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


@pytest.mark.slow
def test_a_server_answers_while_nobody_reads_its_output(pair: Path, pipe: tuple[int, int]) -> None:
    port = free_port()
    command = [sys.executable, "-m", "dovetail", "serve", str(pair / "drafter"), "--port", str(port)]
    command += ["--context", "256", "--log-format", "json"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe[1], stderr=pipe[1]) as child:
        try:
            ready(child, port)
            fill(pipe[1])
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(b"\x16\x03\x01 is no request\r\n\r\n")  # is logged, a second later
                    while connection.recv(1024):
                        pass
                time.sleep(1.1)
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                assert httpx.post(url, json=BODY, timeout=60).status_code == 200
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0
        finally:
            child.kill()
