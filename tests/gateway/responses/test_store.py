"""The store of responses: bounded, private, shared by processes, and never worth an answer that is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
from dovetail.gateway.records.memory import owner_of
from dovetail.gateway.store import sqlite
from dovetail.gateway.store.interface import StoreError, StoreLimits


def response(number: int, size: int = 10, created: int | None = None, previous: str | None = None) -> StoredResponse:
    """A response that takes `size` bytes."""
    when = int(time.time()) if created is None else created
    return StoredResponse(f"resp_{number}", previous, when, b"[]", b"x" * (size - 3), "r")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "responses.db"


def test_a_stored_response_is_there_until_it_is_deleted(path: Path) -> None:
    store = ResponseStore(path)
    assert store.get("resp_1") is None
    assert not store.delete("resp_1")
    stored = response(1, previous="resp_0")
    store.put(stored)
    assert store.get("resp_1") == stored
    store.close()
    assert ResponseStore(path).get("resp_1") == stored, "a restart lost it"
    assert store.delete("resp_1")
    assert store.get("resp_1") is None


def test_owners_do_not_see_each_others_responses(path: Path) -> None:
    ours, theirs = (ResponseStore(path, owner_of(key)) for key in ("key", "another key"))
    ours.put(response(1))
    assert theirs.get("resp_1") is None
    assert not theirs.delete("resp_1")
    assert ours.get("resp_1") is not None
    assert owner_of(None) == "" and len(owner_of("key")) == 64 and "key" not in owner_of("key")
    assert b"another key" not in path.read_bytes()


def test_one_owner_fills_no_more_than_what_others_leave(path: Path) -> None:
    store = ResponseStore(path, limits=StoreLimits(10, 1000))
    alice, bob = store.of("alice"), store.of("bob")
    for i in range(3):
        bob.put(response(i, 100))
    for i in range(10, 30):
        alice.put(response(i, 50))
    assert [i for i in range(30) if bob.get(f"resp_{i}")] == [0, 1, 2]
    assert [i for i in range(30) if alice.get(f"resp_{i}")] == [*range(23, 30)]
    alice.put(response(40, 700))  # in place of all of alice's
    assert [i for i in range(50) if alice.get(f"resp_{i}") or bob.get(f"resp_{i}")] == [0, 1, 2, 40]
    with pytest.raises(StoreError, match="share"):
        alice.put(response(41, 900))
    assert alice.get("resp_40") and bob.get("resp_0"), "what is refused drops nothing"


def test_a_file_of_an_earlier_version_gets_shares(path: Path) -> None:
    store = ResponseStore(path, "a", StoreLimits(3))
    for i in range(3):
        store.put(response(i))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TABLE shares; DROP TRIGGER stored; DROP TRIGGER dropped; DROP INDEX by_owner;")
    connection.close()
    store.of("b").put(response(3))
    store.of("b").put(response(4))
    assert [i for i in range(5) if store.get(f"resp_{i}")] == [2]
    assert [i for i in range(5) if store.of("b").get(f"resp_{i}")] == [3, 4]


def test_a_clock_that_is_set_back_empties_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = ResponseStore(path, limits=StoreLimits(5)), int(time.time())
    for i in range(5):
        store.put(response(i, created=now))
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    for i in range(5, 8):
        store.put(response(i, created=now - 3600))
    assert [i for i in range(8) if store.get(f"resp_{i}")] == [3, 4, 5, 6, 7]


def test_a_response_above_all_room_is_refused(path: Path) -> None:
    store = ResponseStore(path, limits=StoreLimits(size=100))
    store.put(response(1, 100))
    with pytest.raises(StoreError, match="101 bytes"):
        store.put(response(2, 101))
    assert store.get("resp_1") is not None


def test_old_responses_expire(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore(path, limits=StoreLimits(age=100))
    store.put(response(1, created=1_000_000_000))
    now = int(time.time())
    store.put(response(2, created=now))
    assert store.get("resp_1") is None and store.get("resp_2") is not None
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert store.get("resp_2") is None
    store.put(response(3, created=now + 100))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT id FROM responses").fetchall() == [("resp_3",)]
    connection.close()


def test_only_the_owner_of_the_file_can_read_it(path: Path) -> None:
    store = ResponseStore(path)
    store.put(response(1))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    files = [*path.parent.iterdir()]
    assert len(files) == 3  # with the two of the journal
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    store.close()
    path.chmod(0o644)
    assert store.get("resp_1") is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_threads_may_share_a_store(path: Path) -> None:
    store = ResponseStore(path)
    threads = [threading.Thread(target=store.put, args=(response(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(store.get(f"resp_{i}") for i in range(8))


def test_several_may_begin_a_file_at_once(path: Path) -> None:
    """SQLite gives up at once, and does not wait, where two connections switch a new file to a write-ahead log."""
    together = threading.Barrier(4, timeout=10)

    def begin(i: int) -> int:
        for k in range(20):
            together.wait()
            ResponseStore(path.with_name(f"{k}.db")).put(response(i))
        return i

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(begin, range(4))] == [0, 1, 2, 3]


WRITER = """
import sys, time
from pathlib import Path
from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
path, first, count = sys.argv[1:]
store = ResponseStore(Path(path))
for i in range(int(first), int(first) + int(count)):
    store.put(StoredResponse(f"resp_{i}", None, int(time.time()), b"[]", b"x" * 2_000, ""))
    print(i, flush=True)
"""


def writer(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, path, str(first), str(count)], stdout=-1, text=True)


def test_processes_may_share_a_file(path: Path) -> None:
    with writer(path, 0, 60) as one, writer(path, 100, 60) as other:
        assert one.wait() == other.wait() == 0
    store = ResponseStore(path)
    assert all(store.get(f"resp_{i}") for i in (*range(60), *range(100, 160)))


def test_a_killed_process_loses_nothing_that_it_had_stored(path: Path) -> None:
    with writer(path, 0, 1_000_000) as process:
        assert process.stdout is not None
        last = [int(process.stdout.readline()) for _ in range(40)][-1]
        process.send_signal(signal.SIGKILL)
    store = ResponseStore(path)
    assert all(store.get(f"resp_{i}") for i in range(last + 1))
    store.put(response(-1))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def damage(path: Path, how: str) -> None:
    if how == "no database":
        path.write_bytes(b"no database at all, " * 500)
    elif how == "pages":
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
    elif how == "another version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE responses")
            connection.execute("CREATE TABLE responses (id, owner, created, size)")
        connection.close()


@pytest.mark.parametrize("how", ["no database", "pages", "another version", "other columns"])
def test_a_damaged_file_is_moved_aside(path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore(path)
    for i in range(20):
        store.put(response(i, 2_000))
    store.close()
    damage(path, how)
    assert store.get("resp_19") is None
    assert "moved to" in caplog.text
    store.put(response(50))
    assert ResponseStore(path).get("resp_50") is not None
    assert path.with_name("responses.db.damaged").stat().st_size


def test_a_store_follows_its_path(path: Path) -> None:
    """Another process may have moved a damaged file aside, or somebody has deleted it."""
    ours, theirs = ResponseStore(path), ResponseStore(path)
    ours.put(response(1))
    theirs.put(response(2))
    path.unlink()
    theirs.put(response(3))
    assert ours.get("resp_3") is not None and ours.get("resp_1") is None
    error = sqlite3.DatabaseError("database disk image is malformed")
    reader = ours._entries._reader
    reader._inode -= 1  # as if ours had opened the file that theirs has replaced
    reader._move_aside(error)
    assert ours.get("resp_3") is not None, "a sound file was moved aside"


def test_a_full_disk_costs_no_more_than_the_store(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dovetail.gateway")
    store = ResponseStore(path)
    store.put(response(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"full|disk I/O"):
                store.put(response(2, 10_000_000))
        assert store.get("resp_1") is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, earlier)
    levels = [record.levelname for record in caplog.records if "failed" in record.message]
    assert levels == ["WARNING", "DEBUG"], "every failure of a full disk is in the log"
    store.put(response(2, 10_000_000))
    assert store.get("resp_2") is not None


def test_reads_need_no_space(path: Path) -> None:
    """Also through a connection that is opened when the disk is full."""
    store = ResponseStore(path)
    store.put(response(1, 20_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(StoreError, match=r"full|disk I/O"):
            store.put(response(2))
        assert store.get("resp_1") is not None and ResponseStore(path).get("resp_1") is not None
        with pytest.raises(StoreError):
            store.delete("resp_1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, earlier)
    store.put(response(2))
    assert store.get("resp_2") is not None and store.delete("resp_1")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes and does not end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_locked_file_is_waited_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_TIMEOUT", 0.1)
    store = ResponseStore(path)
    store.put(response(1))

    def waits() -> int:
        connection = store._entries._writer._connection
        assert connection is not None
        return int(connection.execute("PRAGMA busy_timeout").fetchone()[0])

    assert waits() == 100
    with locked(path):
        for i in range(3):
            with pytest.raises(StoreError, match="locked"):
                store.put(response(2 + i))
            assert waits() == 5, "the next one waits as long as the first"
        assert store.get("resp_1") is not None and ResponseStore(path).get("resp_1") is not None
        with pytest.raises(StoreError, match="locked"):
            store.delete("resp_1")
    store.put(response(2))
    assert waits() == 100 and store.get("resp_2") is not None and store.delete("resp_1")


def test_a_path_that_cannot_be_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for wrong in (tmp_path / "folder", Path(os.devnull) / "r.db"):
        with pytest.raises(StoreError, match=str(wrong)):
            ResponseStore(wrong).put(response(1))
