"""BFCL's files as cases of the suite `calls`, and its definition of a right answer. The data here is our own."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest
from dovetail.events import Call
from dovetail.verify.report import results
from dovetail.verify.suites import Calls
from dovetail.verify.suites.base import Case
from dovetail.verify.suites.bfcl import CATEGORIES, read_bfcl, right
from tests.verify.harness import AppTransport, endpoint, gateway, verified

WEATHER = {
    "name": "get.weather",
    "description": "Get the weather",
    "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def entry(name: str, text: str, function: Any = WEATHER) -> dict[str, Any]:
    return {"id": name, "question": [[{"role": "user", "content": text}]], "function": [function]}


def write(folder: Path, category: str, entries: list[Any], answers: list[Any]) -> None:
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    for file, content in ((folder, entries), (folder / "possible_answer", answers)):
        (file / f"BFCL_v4_{category}.json").write_text("\n".join(map(json.dumps, content)) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    renamed = {**WEATHER, "name": "get_weather"}
    ask = entry("simple_python_0", "Please get the weather for city Paris.", renamed)
    missed = entry("simple_python_1", "Please get the weather for city Rome.", renamed)
    answers = [
        {"id": "simple_python_0", "ground_truth": [{"get_weather": {"city": ["Paris"]}}]},
        {"id": "simple_python_1", "ground_truth": [{"get_weather": {"city": ["Oslo"]}}]},
    ]
    write(tmp_path, "simple_python", [ask, missed], answers)
    write(tmp_path, "irrelevance", [entry("irrelevance_0", "Hello!")], [])
    write(tmp_path, "live_relevance", [entry("live_relevance_0", "Hello!")], [])
    write(tmp_path, "simple_java", [entry("simple_java_0", "Hello!")], [])
    return tmp_path


def test_figures_are_shares_of_right_answers_and_f1_of_triggers(data: Path) -> None:
    corpus = read_bfcl(str(data), ["simple_python", "irrelevance", "live_relevance", "simple_java"])
    suite = Calls(corpus=corpus)
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite])
    figures = results([suite], outcomes).suites["calls"].figures
    values = {name: (figure.value, figure.n) for name, figure in figures.items() if name.startswith("bfcl")}
    assert values == {
        "bfcl f1 of triggers": (2 / 3, 5),  # of four that should call, two do
        "bfcl simple_python": (0.5, 2),
        "bfcl irrelevance": (1.0, 1),
        "bfcl live_relevance": (0.0, 1),
    }


def test_a_wheel_has_the_same_cases(data: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "bfcl_eval-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in data.rglob("*.json"):
            archive.write(file, Path("bfcl_eval/data") / file.relative_to(data))
    assert read_bfcl(str(wheel), ["simple_python"]) == read_bfcl(str(data), ["simple_python"])
    with pytest.raises(InvalidRequest, match=r"no BFCL_v4_multiple\.json: it takes the wheel"):
        read_bfcl(str(wheel))


def test_names_and_types_become_those_of_every_api(data: Path) -> None:
    properties = {
        "type": {"type": "dict", "properties": {"x": {"type": "float"}, "y": {}}},
        "list": {"type": "tuple", "items": {"type": "any"}, "optional": True},
        "long": {"type": "long", "enum": [1, 2]},
        "odd": 3,
    }
    function = {**WEATHER, "parameters": {"type": "dict", "properties": properties}}
    write(data, "irrelevance", [entry("irrelevance_0", "Hello!", function)], [])
    (case,) = read_bfcl(str(data), ["irrelevance"])
    (tool,) = case.request["tools"]
    assert tool["function"]["name"] == "get_weather"
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"type": "object", "properties": {"x": {"type": "number"}, "y": {}}},
            "list": {"type": "array", "items": {"type": "string"}},
            "long": {"type": "integer", "enum": [1, 2]},
            "odd": 3,
        },
    }


PROPERTIES = {
    "name": {"type": "string"},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "on": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "integer"}},
    "object": {"type": "object"},
}
VALUES = {
    "name": ["New York", "NY"],
    "n": [5],
    "x": [2, ""],
    "on": [True, ""],
    "list": [[1, 2], ""],
    "object": [{"a": ["b"], "c": [1, ""], "deep": [{"e": 1}, ""]}, ""],
}


def case_of(*answers: Any) -> Case:
    parameters = {"type": "object", "properties": PROPERTIES, "required": ["name"]}
    functions = [{"name": name, "parameters": parameters} for name in ("act", "other")]
    tools = [{"type": "function", "function": function} for function in functions]
    return Case("bfcl/x", request={"tools": tools}, expect={"category": "parallel", "answers": answers})


def call(arguments: Any, name: str = "act") -> Call:
    return Call("", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


SOUND = {"name": "NY", "n": 5}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (SOUND, True),
        ({"name": "new-york.", "n": 5, "x": 2.0, "on": True, "list": [1, 2]}, True),
        ({**SOUND, "object": {"a": "B"}}, True),
        ({**SOUND, "object": {"a": "b", "c": 1, "deep": {"e": 1}}}, True),
        ({**SOUND, "object": {"a": "b", "deep": {"e": 2}}}, False),
        ({**SOUND, "object": {"c": 1}}, False),
        ({**SOUND, "object": {"a": "b", "z": 1}}, False),
        ({"name": "NY", "n": 5.0}, False),
        ({"name": "NY", "n": 6}, False),
        ({"name": "NY"}, False),
        ({"n": 5}, False),
        ({**SOUND, "on": 1}, False),
        ({**SOUND, "x": ""}, False),
        ({**SOUND, "list": [1]}, False),
        ({**SOUND, "list": [1.0, 2]}, False),
        ({**SOUND, "list": 1}, False),
        ({**SOUND, "more": 1}, False),
        ([], False),
        ("{", False),
    ],
)
def test_a_call_is_right_if_its_arguments_are_among_the_possible_ones(arguments: Any, expected: bool) -> None:
    assert right(case_of({"act": VALUES}), [call(arguments)]) is expected
    assert right(case_of({"other": VALUES}), [call(arguments)]) is False


@given(st.permutations([0, 1, 2]), st.integers(0, 3))
def test_calls_are_right_in_any_order_and_in_the_right_number(order: list[int], n: int) -> None:
    answers = [{"act": {**VALUES, "n": [number]}} for number in range(3)]
    calls = [call({"name": "NY", "n": number}) for number in order]
    assert right(case_of(*answers), calls[:n]) is (n == 3)
    assert right(case_of(*answers), [*calls, calls[0]]) is False


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{", "has a line that is no JSON"),
        ('{"id": 1}', "without question and function"),
        ("3", "has an entry without"),
    ],
)
def test_files_of_another_shape_are_refused(lines: str, message: str, data: Path) -> None:
    (data / "BFCL_v4_irrelevance.json").write_text(lines)
    with pytest.raises(InvalidRequest, match=message):
        read_bfcl(str(data), ["irrelevance"])


def test_what_is_no_data_and_no_category_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("x")
    with pytest.raises(InvalidRequest, match="cannot be read as a wheel"):
        read_bfcl(str(tmp_path / "a.whl"))
    with pytest.raises(InvalidRequest, match=r"has no BFCL_v4_simple_python\.json"):
        read_bfcl(str(tmp_path))
    with pytest.raises(InvalidRequest, match="--bfcl-categories has 'memory'; it knows simple_python"):
        read_bfcl(str(tmp_path), ["memory"])
    assert len(CATEGORIES) == 5
