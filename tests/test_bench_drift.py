"""`python -m benchmarks.drift`: Dovetail alone, what counts as right, and the table in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drift import __main__ as command
from benchmarks.drift.cases import WELL_FORMED

CALL = {"name": "run", "arguments": {"malformed_arguments": "ls, please"}, "ended": True}
MEANT = {"content": "", "reasoning": "", "calls": [CALL]}


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr("sys.argv", ["drift", "--only", "--formats", "kimi_k25", *options])
    command.main()
    return capsys.readouterr().out


def test_dovetail_reads_all_that_is_well_formed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = json.loads(run(monkeypatch, capsys, "--json"))
    right, count = figures["kinds"][WELL_FORMED]["Dovetail"]
    assert right == count == 5
    assert figures["kinds"]["all"]["Dovetail"][1] == sum(
        found["Dovetail"][1] for kind, found in figures["kinds"].items() if kind != "all"
    )


def test_the_table_goes_into_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{command._BEGIN}old\n{command._END}\nThe rest.\n", encoding="utf-8")
    run(monkeypatch, capsys, "--write", str(page))
    text = page.read_text(encoding="utf-8")
    assert "| well-formed: 5 / 5 |" in text
    assert "old" not in text
    assert text.endswith(f"{command._END}\nThe rest.\n")


@pytest.mark.parametrize(
    ("calls", "content", "right"),
    [
        ([{"name": "run", "arguments": '{"malformed_arguments": "ls, please"}'}], "", True),
        ([{"name": "run", "arguments": "ls, please"}], "", True),
        ([], "<call>run ls, please</call>", True),
        ([{"name": "run", "arguments": "{}"}], "", False),
        ([{"name": "walk", "arguments": "ls, please"}], "", False),
        ([], "", False),
    ],
)
def test_the_text_of_an_unreadable_call_has_to_arrive(calls: list[dict[str, Any]], content: str, right: bool) -> None:
    assert command.is_right({"content": content, "reasoning": "", "calls": calls}, MEANT) is right
