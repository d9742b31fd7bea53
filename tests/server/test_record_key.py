"""The key that signs records of answers: of a file, or made once and kept where only its owner reads it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.errors import PlanError
from dovetail.plan import Plan
from dovetail.plan.resolve import resolve
from dovetail.server.record_key import record_key


@pytest.fixture
def plan(pair: Path) -> Plan:
    return resolve(str(pair / "target"), {})


@pytest.fixture
def key_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the key is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "dovetail" / "record.key"


def test_a_key_is_made_at_the_first_start_and_kept(plan: Plan, key_path: Path) -> None:
    key = record_key(plan)
    assert len(key) == 32
    assert record_key(plan) == key == key_path.read_bytes()
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_path.parent.stat().st_mode) == 0o700
    assert os.listdir(key_path.parent) == ["record.key"]
    key_path.unlink()
    assert record_key(plan) != key


def test_servers_that_start_together_have_one_key(plan: Plan, key_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: record_key(plan), range(32))) == {key_path.read_bytes()}


def test_the_default_folder(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert record_key(plan) == (tmp_path / ".config/dovetail/record.key").read_bytes()


def _readable(key_path: Path) -> None:
    key_path.write_bytes(b"k" * 32)
    key_path.chmod(0o644)


def _short(key_path: Path) -> None:
    key_path.write_bytes(b"k" * 8)
    key_path.chmod(0o600)


def _link(key_path: Path) -> None:
    (key_path.parent / "other").write_bytes(b"k" * 32)
    key_path.symlink_to(key_path.parent / "other")


@pytest.mark.parametrize("spoil", [_readable, _short, _link, Path.mkdir])
def test_a_kept_key_that_others_may_know_is_not_used(
    plan: Plan, key_path: Path, caplog: pytest.LogCaptureFixture, spoil: object
) -> None:
    key_path.parent.mkdir(parents=True)
    assert callable(spoil)
    spoil(key_path)
    key = record_key(plan)
    assert len(key) == 32
    assert key not in (b"k" * 32, record_key(plan))
    assert "records of answers end with this server" in caplog.text
    assert str(key_path) in caplog.text


def test_without_a_folder_the_key_is_for_one_run(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert len(record_key(plan)) == 32
    assert record_key(plan) != record_key(plan)


def test_the_key_of_a_file(pair: Path, key_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"secret" * 6)
    plan = resolve(str(pair / "target"), {"record_key_file": str(path)})
    assert record_key(plan) == b"secret" * 6
    assert not key_path.exists()
    for content in (b"short", b"x" * 5000):
        path.write_bytes(content)
        with pytest.raises(PlanError, match=f"record_key_file {path} must hold 32 to 4096 bytes"):
            record_key(plan)
    path.unlink()
    with pytest.raises(PlanError, match=f"record_key_file {path} cannot be read: No such file"):
        record_key(plan)
