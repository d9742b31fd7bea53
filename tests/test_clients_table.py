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
from clients.scripted.agents import HANDS, task_calls
from clients.scripted.answers import SCRIPTS

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
        ("overflow", "400: This model's maximum context length is 9 tokens", "400: too large"),
        ("overflow", "400: prompt is too long: 10 tokens > 9 maximum", "400: prompt"),
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
        assert not client.tools or client.tools in HANDS
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


READ = {"script": "edit", "calls": ["Read", "Bash"], "differs": None, "results": []}
RESULTS = [tasks.EDIT_FILE, f"cat: {tasks.MISSING_ERROR} or directory"]


def agent(*steps: dict[str, Any], lacks: tuple[str, ...] = ()) -> Row:
    """The row of an agent with claude-code's tools whose turns after the first were `steps`."""
    turns = [READ, *({**READ, "results": RESULTS, **step} for step in steps)]
    filled = Row("a", "2026-01-01")
    target = SCRIPTED._replace(completions=turns)
    filled.add(Outcome({"edited": tasks.EDIT_FILE}, {}, None, ""), target, "claude-code", lacks)
    return filled


def test_an_agent_must_make_the_calls_of_its_tools() -> None:
    done = agent({"calls": ["Edit"]}, {"calls": ["Bash"]}, {"calls": []})
    names = ("turns", "exact", "both_results", "failed_call", "edited")
    assert [done.cell(name) for name in names] == ["yes", "yes", "yes", "yes", "no"]
    assert agent({"calls": ["Write"]}, {"calls": ["Bash"]}, {"calls": []}).cell("turns") == "no"
    assert agent({"calls": ["Edit"]}).cell("turns") == "no"


@pytest.mark.parametrize("results", [[], RESULTS[:1], RESULTS[::-1]])
def test_an_agent_must_bring_back_both_results(results: list[str]) -> None:
    assert agent({"calls": ["Edit"], "results": results}).cell("both_results") == "no"


def test_a_feature_that_a_client_lacks_is_no_fault() -> None:
    changed = {"calls": ["Edit"], "differs": ["a", "b"]}
    assert agent(changed).cell("exact") == "no"
    assert agent(changed, lacks=("exact",)).cell("exact", ("exact",)) == "–"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (f"... {tasks.SHORTENED}", True),
        (tasks.WENT_ON, True),
        ("Error: 400 This model's maximum context length is 131072 tokens", True),
        ("", False),
        ("0\n1\n2", False),
    ],
)
def test_an_agent_goes_on_beyond_the_context_or_says_why_not(text: str, right: bool) -> None:
    grown = {"script": "grow", "prompt": tasks.CONTEXT - 10_000}
    assert (fault("outgrown", text, SCRIPTED._replace(completions=[grown])) is None) == right
    assert fault("outgrown", text, SCRIPTED) is not None


@pytest.mark.parametrize("name", HANDS)
def test_the_scripted_model_goes_through_the_edit_task(name: str) -> None:
    """Its answers to results that come back as they should, and to a file that was not shown."""
    request = tasks.edit_request("/tmp/a.txt", name)
    script = next(script for script in SCRIPTS if script.name == "edit")
    match = script.pattern.search(request)
    assert match is not None
    results = [*RESULTS, "done", "matches: 1"]
    turns = [script.turn(match, results[:count])[0] for count in (0, 2, 3, 4)]
    assert [[name for name, _ in turn.calls] for turn in turns] == task_calls(name)
    assert tasks.EDIT_ANSWER in turns[-1].text + str(turns[-1].calls)
    assert "This is the final of it." in str(turns[1].calls)
    assert "This is" not in str(script.turn(match, ["not found", "", "done"][:2])[0].calls)
