"""The table of `python -m clients`: what counts as passed, and what its page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients import tasks
from clients.catalogue import CLIENTS, ENVIRONMENTS
from clients.features import FEATURES, Target, fault
from clients.page import page
from clients.results import Record, Row, title
from clients.runner import Outcome

LOG = ({"script": "hello", "prompt": 10, "output": 34, "differs": None},)
SCRIPTED = Target("kimi_k25", "http://127.0.0.1:1", "scripted", reasons=True, scripted=True, completions=LOG)
DEMO = Target("demo", "http://127.0.0.1:1", "demo", reasons=True, scripted=False)


@pytest.mark.parametrize(
    ("feature", "right", "wrong"),
    [
        ("plain", tasks.HELLO_ANSWER, tasks.HELLO_ANSWER[:-1]),
        ("stream", {"text": tasks.COUNT_ANSWER, "pieces": 40}, {"text": tasks.COUNT_ANSWER, "pieces": 1}),
        ("usage", [10, 34], [10, 33]),
        ("call", [["get_weather", {"city": "Paris"}]], [["get_weather", {}]]),
        ("length", "max_tokens", "stop"),
        ("bad_field", "BadRequestError: temperature: too high", "BadRequestError: no"),
        ("counted", 34, 33),
        ("exact", True, ["text", "other"]),
    ],
)
def test_the_scripted_model_is_seen_to_the_letter(feature: str, right: Any, wrong: Any) -> None:
    assert fault(feature, right, SCRIPTED) is None
    assert fault(feature, wrong, SCRIPTED) is not None


def test_the_demo_model_may_say_anything_of_the_right_kind() -> None:
    assert fault("plain", "Hi.", DEMO) is None
    assert fault("plain", "", DEMO) is not None
    assert fault("structured", {"name": "Eve", "age": 1}, DEMO) is None
    assert fault("structured", {"name": "Eve"}, DEMO) is not None


def row(**outcome: Any) -> Row:
    filled = Row("someone, chat", "2026-01-01")
    outcome = {"saw": {}, "errors": {}, "failed": None, "stderr": "", **outcome}
    filled.add(Outcome(**outcome), SCRIPTED)
    return filled


def test_cells() -> None:
    seen = row(saw={"plain": tasks.HELLO_ANSWER, "call": []}, errors={"result": "KeyError: 'x'"})
    assert [seen.cell(name) for name in ("plain", "call", "result", "stream")] == ["yes", "no", "no", "not tried"]
    assert (seen.cell("stream", ("stream",)), seen.cell("plain", ("plain",))) == ("–", "yes")
    seen.add(Outcome({"plain": ""}, {}, None, ""), DEMO)
    assert seen.cell("plain") == "not with demo"


@pytest.mark.parametrize("failed", ["its program took more than 9 s", None])
def test_a_program_that_fails_is_a_fault(failed: str | None) -> None:
    crashed = row(failed=failed, stderr="a\nValueError: b")
    assert [fault[1] for fault in crashed.faults] == ["program"]
    assert "ValueError: b" in crashed.faults[0][2]
    assert crashed.cell("plain") == "no"


def test_the_page_names_faults_and_versions() -> None:
    seen = row(saw={"plain": "a | b"})
    seen.versions = {"someone": "1.2"}
    text = page([seen])
    assert "| someone, chat | no | not tried | not tried | not tried |" in text
    assert "saw 'a \\| b'" in text
    assert "| someone |  | 1.2 | 2026-01-01 |" in text


def test_rows_are_recorded(tmp_path: Path) -> None:
    seen = row(saw={"plain": tasks.HELLO_ANSWER})
    seen.title = title(CLIENTS[0])
    Record(tmp_path / "record.json").keep(seen)
    again = Record(tmp_path / "record.json")
    assert again.rows == [seen]
    assert not again.complete


def test_the_catalogue_is_consistent() -> None:
    scripts = Path(__file__).parents[1] / "clients" / "scripts"
    titles = [title(client) for client in CLIENTS]
    assert len(set(titles)) == len(titles)
    for client in CLIENTS:
        assert client.environment in ENVIRONMENTS
        assert (scripts / client.script).is_file()
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


def test_an_agent_must_use_the_tools_that_it_was_to_use() -> None:
    turns = [{"script": "edit", "calls": calls, "differs": None} for calls in (["Read"], ["Edit"], [])]
    target = SCRIPTED._replace(completions=turns)
    done, other = Row("a", "2026-01-01"), Row("b", "2026-01-01")
    done.add(Outcome({"edited": tasks.EDIT_FILE}, {}, None, ""), target, ("Read", "Edit"))
    other.add(Outcome({"edited": tasks.EDIT_FILE}, {}, None, ""), target, ("Read", "Write"))
    assert (done.cell("turns"), done.cell("exact"), done.cell("edited")) == ("yes", "yes", "no")
    assert other.cell("turns") == "no"
