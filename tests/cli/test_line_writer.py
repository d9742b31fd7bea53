"""Lines reach their reader whole and in order, and a reader that stalls or leaves holds up nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dovetail.cli.line_writer import LineWriter, close_all

#: A file that takes no byte.
FULL = Path("/dev/full")


def test_lines_come_out_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"%d" % number * (number % 7) for number in range(2_000)]
    with path.open("wb") as file:
        write = LineWriter(file.fileno())
        for line in lines:
            write(line)
        write.close(30)
    assert path.read_bytes().split(b"\n") == [*lines, b""]
    assert not write.dropped


def test_a_reader_that_stalls_loses_lines_and_learns_how_many(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    write = LineWriter(sink, most_lines=10)
    line = b"x" * 1_000  # a pipe takes 64 KiB, so 200 lines fill it, the writer's hands and its queue
    for _ in range(1_000):
        write(line)
    dropped = write.dropped
    assert dropped >= 500

    written = threading.Event()

    def rest() -> None:
        while not written.is_set():
            write(b"last")
            written.wait(0.01)

    late = threading.Thread(target=rest)
    late.start()
    with open(source, "rb", closefd=False) as reader:
        reports = (json.loads(text) for text in reader if text.startswith(b"{"))
        first = next(reports)
        written.set()
    late.join()
    assert first["kind"] == "dropped" and first["lines"] >= dropped


def test_a_reader_that_leaves_is_no_error(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    os.close(source)
    write = LineWriter(sink)
    for _ in range(3):
        write(b"nobody reads this")
    write.close(30)
    assert write.dropped == 3


def test_a_closed_descriptor_is_no_error(pipe: tuple[int, int]) -> None:
    _, sink = pipe
    os.close(sink)
    write = LineWriter(sink)
    write(b"nobody reads this")
    write.close(30)
    assert write.dropped == 1


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_no_error() -> None:
    with FULL.open("wb", buffering=0) as file:
        write = LineWriter(file.fileno())
        write(b"there is no room for this")
        write.close(30)
        assert write.dropped == 1


def test_a_descriptor_that_does_not_block_gets_all_lines(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    os.set_blocking(sink, False)
    write = LineWriter(sink)
    lines = [b"%d" % number * 500 for number in range(1_000)]  # more than a pipe takes
    for line in lines:
        write(line)
    with open(source, "rb", closefd=False) as reader:
        assert [next(reader) for _ in lines] == [line + b"\n" for line in lines]
    write.close(30)


def test_lines_after_the_end_begin_anew(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("wb") as file:
        write = LineWriter(file.fileno())
        write.close()  # nothing was written, and no thread has started
        write(b"1")
        write.close(30)
        write(b"2")
        close_all()
    assert (tmp_path / "lines").read_bytes() == b"1\n2\n"


def test_lines_of_several_processes_do_not_mix() -> None:
    script = """
import os
from dovetail.cli.line_writer import LineWriter
write = LineWriter(1)
children = []
for number in range(2):
    child = os.fork()
    if not child:
        for i in range(3_000):
            write(b"%d" % number * (i % 600 + 1))
        write.close(60)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    lines = ended.stdout.splitlines()
    assert len(lines) == 6_000, ended.stderr
    for number in "01":
        own = [line for line in lines if line[0] == number]
        assert own == [number * (i % 600 + 1) for i in range(3_000)]


def test_a_writer_begins_anew_after_a_fork(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("wb") as file:
        write = LineWriter(file.fileno())
        write(b"1")
        write.close(30)
        write.forked()
        write(b"2")
        write.close(30)
    assert (tmp_path / "lines").read_bytes() == b"1\n2\n"


def test_a_child_of_a_fork_has_a_writer_of_its_own() -> None:
    script = """
import os
from dovetail.cli.line_writer import LineWriter, close_all
write = LineWriter(1)
write(b"before")
write.close(30)
write(b"parent")
child = os.fork()
if not child:
    write(b"child")
    close_all()
    os._exit(0)
os.waitpid(child, 0)
write.close(30)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert sorted(ended.stdout.splitlines()) == ["before", "child", "parent"], ended.stderr


def test_a_stalled_reader_does_not_keep_the_process_alive() -> None:
    script = """
import os
from dovetail.cli.line_writer import LineWriter
write = LineWriter(os.pipe()[1])
for _ in range(100):
    write(b"x" * 10_000)
write.close(0.1)
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "ended\n"
