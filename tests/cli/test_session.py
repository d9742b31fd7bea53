"""`dovetail explain --session DIR`: the turns of conversations, what of each prompt was computed again, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import explain
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import decode
from dovetail.inspect.verdict import verdict
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import ScriptedEngine
from tests.gateway.test_prefix import CALLED, Conversation, another_date, no_reasoning
from tests.gateway.test_recordings import files, recorded
from tests.gateway.test_token_exact import letter_by_letter


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def folder(small_tokenizer: Tokenizer, tmp_path: Path, anyio_backend: str) -> Path:
    """Three turns: the second lacks the reasoning, and the third has another date too. Then another conversation."""
    engine, folder = ScriptedEngine(small_tokenizer), tmp_path / "recordings"
    engine.ids = letter_by_letter(CALLED, small_tokenizer)
    memory = tmp_path / "memory.db"
    async with recorded(engine, small_tokenizer, folder, memory=memory, strict="off") as client:
        conversation = Conversation(client, engine, store=False)
        await conversation.begin()
        no_reasoning(conversation.body)
        await conversation.begin()
        another_date(conversation.body)
        await conversation.ask()
        other = Conversation(client, engine)
        other.body["messages"][1] = {"role": "user", "content": "a second task"}
        await other.ask()
    return folder


def explained(capsys: pytest.CaptureFixture[str], **arguments: Any) -> str:
    assert explain.run(argparse.Namespace(**{"recording": None, "session": None, "json": False, **arguments})) == 0
    return capsys.readouterr().out


@pytest.mark.anyio
async def test_the_table_of_a_conversation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = explained(capsys, session=str(folder))
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert lines[0] == ["go"] and "a second task" not in shown
    assert [line[0] for line in lines[2:5]] == ["1", "2", "3"]
    assert "without its reasoning (messages[2].reasoning_content)" in shown
    assert "a line of the system text with a date or a time is another one (messages[0].content)" in shown
    assert lines[5][1:] == ["tokens", "were", "computed", "again"]
    (session,) = json.loads(explained(capsys, session=str(folder), json=True))
    prefixes = [turn["prefix"] for turn in session["turns"]]
    assert prefixes[0] is None and [each["cause"] for each in prefixes[1:]] == ["reasoning", "date"]
    assert int(lines[5][0].replace(",", "")) == sum(each["lost"] for each in prefixes[1:])


@pytest.mark.anyio
async def test_the_verdict_of_a_turn_names_the_cause(folder: Path) -> None:
    recordings = [decode(path.read_bytes(), path.name) for path in files(folder)]
    found = [[each.text for each in verdict(one) if each.kind == "prefix"] for one in recordings]
    assert found[0] == found[3] == []
    assert "the answer came back without its reasoning (messages[2].reasoning_content)" in found[1][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "name either a file"),
        ({"recording": "a.json", "session": "b"}, "name either a file"),
        ({"session": "/nowhere/at/all"}, "has no recordings"),
    ],
)
def test_what_is_no_session(arguments: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequest, match=message):
        explained(capsys, **arguments)


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.recording.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=r"x\.recording\.json"):
        explained(capsys, session=str(tmp_path))
