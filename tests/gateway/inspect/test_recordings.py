"""The list of recordings: its order, its pages, what it searches for, and its bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest, UnknownRecording
from dovetail.gateway.inspect import recordings
from dovetail.gateway.inspect.recordings import Listing, Recordings
from dovetail.gateway.inspect.search import Search
from dovetail.gateway.recordings.folder import SUFFIX
from dovetail.gateway.recordings.recording import RecordedError
from tests.gateway.inspect.files import recording, step, with_call, write


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


def names(folder: Path, **search: Any) -> list[str]:
    return [each.name for each in Recordings(folder).search(Search(**search)).recordings]


def test_a_line_has_the_figures_of_its_recording(folder: Path) -> None:
    unreadable, refused, call, answer = Recordings(folder).search(Search()).recordings
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
        names(tmp_path / "gone")


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ({}, "dcba"),
        ({"text": "GOOD DAY"}, "ba"),
        ({"text": "it rains."}, "a"),
        ({"text": "ünï"}, "b"),
        ({"text": "9007199254740993"}, "cba"),
        ({"text": "no such"}, "c"),
        ({"text": "steps"}, ""),  # the name of a field
        ({"finish": "stop"}, "a"),
        ({"finish": "UnknownModel"}, "c"),
        ({"model": "other"}, "c"),
        ({"defects": True}, "db"),
        ({"defects": True, "finish": "stop"}, ""),
    ],
)
def test_a_search_lists_what_fits(folder: Path, search: dict[str, Any], expected: str) -> None:
    assert "".join(names(folder, **search)) == expected


@given(
    st.lists(st.integers(0, 5), max_size=12), st.integers(1, 5), st.integers(1, 40_000), st.sampled_from(["", "stop"])
)
@settings(max_examples=25)
def test_pages_of_any_size_are_the_whole_list(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], limit: int, most_read: int, finish: str
) -> None:
    folder = tmp_path_factory.mktemp("recordings")
    for number, written in enumerate(times):
        write(folder, f"r{number:02}", recording() if number % 2 else with_call(), written)
    index = Recordings(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "_MOST_READ", most_read)
        shown: list[str] = []
        page: Listing | None = None
        while page is None or page.next is not None:
            page = index.search(Search(limit=limit, finish=finish, before=page and page.next))
            assert len(page.recordings) <= limit
            shown += [each.name for each in page.recordings]
    expected = sorted(((written, f"r{number:02}") for number, written in enumerate(times)), reverse=True)
    assert shown == [name for _, name in expected if not finish or int(name[1:]) % 2]


def test_a_search_opens_only_so_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "_MOST_READ", 3 * 4096)
    for number in range(10):
        write(tmp_path, f"r{number}", b"", number)
    index = Recordings(tmp_path)
    first = index.search(Search(finish="stop"))
    assert not first.recordings and first.next is not None and first.next.endswith(".r7")
    second = index.search(Search(finish="stop", before=first.next))
    assert second.next is not None and second.next.endswith(".r4")
    third = index.search(Search())  # what is known is not read again
    assert third.next is not None and third.next.endswith(".r1")


def test_new_recordings_appear_and_deleted_ones_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "_LISTED_S", 0)
    monkeypatch.setattr(recordings, "_LISTED_TIMES", 0)
    index = Recordings(folder)
    assert [each.name for each in index.search(Search(limit=1)).recordings] == ["d"]
    write(folder, "e", recording(), 9)
    assert [each.name for each in index.search(Search(limit=1)).recordings] == ["e"]
    (folder / f"e{SUFFIX}").unlink()
    assert [each.name for each in index.search(Search(limit=1)).recordings] == ["d"]


def test_a_recording_that_is_deleted_while_the_list_is_read_is_left_out(folder: Path) -> None:
    index = Recordings(folder)
    index.search(Search(limit=1))  # lists the folder
    (folder / f"a{SUFFIX}").unlink()
    assert [each.name for each in index.search(Search()).recordings] == ["d", "c", "b"]
    (folder / f"b{SUFFIX}").unlink()
    assert [each.name for each in index.search(Search(text="good")).recordings] == []


def test_a_folder_is_listed_once_in_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    scan = os.scandir
    monkeypatch.setattr(recordings.os, "scandir", lambda path: listed.append(path) or scan(path))
    monkeypatch.setattr(recordings, "_LISTED_S", 1000)
    index = Recordings(folder)
    for _ in range(5):
        index.search(Search())
    assert len(listed) == 1


def test_what_is_no_recording_is_neither_listed_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_BYTES", 100)
    secret = tmp_path / "secret"
    secret.write_bytes(b"{}")
    (tmp_path / "link.recording.json").symlink_to(secret)
    (tmp_path / "folder.recording.json").mkdir()
    (tmp_path / ".hidden.recording.json").write_bytes(b"{}")
    os.mkfifo(tmp_path / "pipe.recording.json")
    (tmp_path / "large.recording.json").write_bytes(b" " * 101)
    index = Recordings(tmp_path)
    (large,) = index.search(Search()).recordings
    assert large.name == "large" and "101 bytes" in (large.unreadable or "")
    assert names(tmp_path, text="x") == []
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
    (line,) = Recordings(tmp_path).search(Search()).recordings
    assert max(map(len, (line.id, line.model, line.api, *line.finish))) == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"text": "x" * 201}, "text"),
        ({"color": "red"}, "color"),
        ({"limit": "many"}, None),
        ({"defects": "perhaps"}, None),
    ],
)
def test_a_wrong_parameter_is_refused(query: dict[str, str], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as error:
        Search.of(query)
    assert error.value.param == param


@pytest.mark.parametrize("before", ["x", "1", "1.", ".a", "1.../b", "9" * 30 + ".a", "-1.a"])
def test_a_place_that_no_reply_had_is_refused(folder: Path, before: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        names(folder, before=before)
    assert error.value.param == "before"
