"""The list of recordings: its order, its lines, and its bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest, UnknownRecording
from dovetail.gateway.observe.recording import RecordedError
from dovetail.gateway.observe.recording_folder import SUFFIX
from dovetail.inspect import listing
from dovetail.inspect.listing import Recordings
from tests.inspect.files import recording, step, with_call, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "a", recording(), 1)
    write(tmp_path, "b", with_call(), 2)
    refused = recording(
        model="other", prompt=None, steps=(), messages=(), error=RecordedError("UnknownModel", "no such")
    )
    write(tmp_path, "c", refused, 3)
    write(tmp_path, "d", b'{"kind": "dovetail recording", "vers', 4)
    return tmp_path


def names(index: Recordings, limit: int = 50) -> str:
    """The names of the newest recordings; "…": there are older ones."""
    shown = index.newest(limit)
    return "".join(each.name for each in shown.recordings) + "…" * shown.more


def test_a_line_has_the_figures_of_its_recording(folder: Path) -> None:
    unreadable, refused, call, answer = Recordings(folder).newest(50).recordings
    assert (answer.name, answer.id, answer.api, answer.model, answer.seconds) == ("a", "chatcmpl-1", "chat", "m", 0.5)
    assert (answer.prompt_tokens, answer.tokens, answer.drafted, answer.accepted) == (3, 3, 6, 1)
    assert (answer.finish, answer.calls, answer.defects) == (("stop",), (), ())
    assert (call.finish, call.calls, call.defects) == (
        ("tool_calls",),
        ("look_up",),
        ("stray_marker", "schema_mismatch"),
    )
    assert (refused.finish, refused.tokens, refused.drafted, refused.prompt_tokens) == (
        ("UnknownModel",),
        0,
        None,
        None,
    )
    assert "cut off" in (unreadable.unreadable or "") and unreadable.name == "d"


def test_a_folder_that_is_gone_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UnknownRecording, match="folder of recordings cannot be read: No such file"):
        names(Recordings(tmp_path / "gone"))


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 13), st.integers(1, 40_000))
@settings(max_examples=25)
def test_the_newest_are_listed_piece_by_piece(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], limit: int, most_read: int
) -> None:
    folder = tmp_path_factory.mktemp("recordings")
    for number, written in enumerate(times):
        write(folder, chr(ord("a") + number), recording() if number % 2 else with_call(), written)
    newest = sorted(((written, chr(ord("a") + number)) for number, written in enumerate(times)), reverse=True)
    index = Recordings(folder)
    whole = "".join(name for _, name in newest[:limit]) + "…" * (limit < len(times))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_MOST_READ", most_read)
        shown = [names(index, limit) for _ in range(len(times) + 1)]
    assert shown[-1] == whole
    assert all(each == whole or (each.endswith("…") and whole.startswith(each[:-1])) for each in shown)


def test_one_call_opens_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_READ", 3 * 4096)
    for number in range(10):
        write(tmp_path, f"{number}", b"", number)
    index = Recordings(tmp_path)
    assert [names(index) for _ in range(4)] == ["987…", "987654…", "987654321…", "9876543210"]


def test_new_recordings_appear_and_deleted_ones_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_LISTED_S", 0)
    monkeypatch.setattr(listing, "_LISTED_TIMES", 0)
    index = Recordings(folder)
    assert names(index, 1) == "d…"
    write(folder, "e", recording(), 9)
    assert names(index, 1) == "e…"
    (folder / f"e{SUFFIX}").unlink()
    assert names(index, 1) == "d…"


def test_a_recording_that_is_deleted_while_the_list_is_read_is_left_out(folder: Path) -> None:
    index = Recordings(folder)
    index.newest(1)  # lists the folder
    (folder / f"a{SUFFIX}").unlink()
    assert names(index) == "dcb"


def test_a_folder_is_listed_once_in_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    scan = os.scandir
    monkeypatch.setattr(listing.os, "scandir", lambda path: listed.append(path) or scan(path))
    monkeypatch.setattr(listing, "_LISTED_S", 1000)
    index = Recordings(folder)
    for _ in range(5):
        index.newest(50)
    assert len(listed) == 1


def test_what_is_no_recording_is_neither_listed_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_BYTES", 100)
    secret = tmp_path / "secret"
    secret.write_bytes(b"{}")
    (tmp_path / "link.recording.json").symlink_to(secret)
    (tmp_path / "folder.recording.json").mkdir()
    (tmp_path / ".hidden.recording.json").write_bytes(b"{}")
    os.mkfifo(tmp_path / "pipe.recording.json")
    (tmp_path / "large.recording.json").write_bytes(b" " * 101)
    index = Recordings(tmp_path)
    (large,) = index.newest(50).recordings
    assert large.name == "large" and "101 bytes" in (large.unreadable or "")
    for name in ("link", "folder", "pipe", ".hidden", "../secret", "a/b", "", "x" * 300, "a\0b", "gone"):
        with pytest.raises(UnknownRecording):
            index.show(name)
    with pytest.raises(InvalidRequest, match="no recording"):
        index.show("large")


def test_a_recording_is_shown_with_its_verdict_and_every_digit_of_its_request(folder: Path) -> None:
    shown = Recordings(folder).show("a")
    assert shown.request == '{\n  "seed": 9007199254740993\n}' and bytes(shown.recording.request) == b"null"
    assert shown.verdict[0].kind == "answered" and shown.recording.steps == recording().steps
    with pytest.raises(InvalidRequest, match="cut off"):
        Recordings(folder).show("d")


def test_lines_are_short_whatever_a_recording_has(tmp_path: Path) -> None:
    steps = tuple(step("x", finish="stop" * 1000) for _ in range(3))
    write(tmp_path, "a", recording(id="i" * 10**6, model="m" * 10**6, api="a" * 10**6, steps=steps), 1)
    (line,) = Recordings(tmp_path).newest(50).recordings
    assert max(map(len, (line.id, line.model, line.api, *line.finish))) == 200
