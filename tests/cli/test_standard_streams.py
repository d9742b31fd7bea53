"""A server whose output nobody reads, or that has none, serves on; and no command needs a standard stream."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from dovetail.cli.standard_streams import BackgroundStream, dropped_pieces, in_background
from tests.cli.test_serve import free_port

BODY = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def fill(sink: int) -> None:
    os.set_blocking(sink, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink, b"x")
    os.set_blocking(sink, True)


def serves_and_ends(command: list[str], port: int, sink: int | None) -> None:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink) as child:
        try:
            until = time.monotonic() + 120
            while child.poll() is None and time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200:
                        break
                time.sleep(0.05)
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY, timeout=60)
            metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0
        finally:
            child.kill()
    assert answer.status_code == 200
    assert "dovetail_dropped_messages_total " in metrics


@pytest.mark.slow
def test_a_server_serves_on_a_full_pipe(pair: Path, pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    port = free_port()
    command = [sys.executable, "-m", "dovetail", "serve", str(pair / "drafter"), "--port", str(port)]
    serves_and_ends([*command, "--context", "256"], port, pipe[1])


@pytest.mark.slow
def test_a_server_serves_without_standard_streams(pair: Path) -> None:
    port = free_port()
    command = 'exec "$@" <&- >&- 2>&-'
    words = [sys.executable, "-m", "dovetail", "serve", str(pair / "drafter"), "--port", str(port), "--context", "256"]
    serves_and_ends(["sh", "-c", command, "sh", *words], port, None)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("version", 0), ("recipes none", 2)])
def test_a_command_needs_no_standard_stream(closed: str, command: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "dovetail", *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert closed != "<&-" or (done.stderr if code else done.stdout)


@pytest.mark.slow
def test_an_error_ends_the_process_on_a_full_pipe(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    command = [sys.executable, "-m", "dovetail", "recipes", "none"]
    assert subprocess.run(command, stderr=pipe[1], check=False, timeout=60).returncode == 2


def test_output_in_the_background_is_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with path.open("w", encoding="ascii") as file:
        stream = BackgroundStream(file)
        for number in range(1000):
            print(number, "é" * (number % 3), file=stream)
        stream.write("no end of line")
        stream.flush()
        stream.write(", and none")
        stream.finish()
        assert not stream.dropped and stream.writable() and not stream.isatty()
    expected = "".join(f"{number} {'é' * (number % 3)}\n" for number in range(1000)) + "no end of line, and none"
    assert path.read_text() == expected.replace("é", "?")


def test_what_nobody_reads_is_dropped_counted_and_reported(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    with open(sink, "w", closefd=False) as file:
        stream = BackgroundStream(file)
        for _ in range(20_000):  # more than the pipe and the queue hold
            stream.write("x" * 100 + "\n")
        dropped = stream.dropped
        assert dropped > 0
        os.set_blocking(source, False)
        read = b""
        until = time.monotonic() + 60
        while b"messages were dropped here, because nobody read them]\n" not in read and time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                read += os.read(source, 1 << 16)
            stream.write("later\n")
        assert b"messages were dropped here" in read
        assert stream.dropped >= dropped
        os.close(source)
        stream.finish()


def test_streams_are_the_usual_ones_again(capsys: pytest.CaptureFixture[str], pipe: tuple[int, int]) -> None:
    usual = sys.stdout, sys.stderr
    with in_background():  # those of pytest are no files
        print("hello")
        assert dropped_pieces() == 0
    assert (sys.stdout, sys.stderr) == usual
    assert capsys.readouterr().out == "hello\n"
    os.close(pipe[0])
    with open(pipe[1], "w", closefd=False) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        with in_background():
            assert sys.stdout is not file and sys.stdout.fileno() == pipe[1]
            print("nobody reads this")
            until = time.monotonic() + 60
            while not dropped_pieces() and time.monotonic() < until:
                time.sleep(0.001)
            assert dropped_pieces() == 1
        assert sys.stdout is file
