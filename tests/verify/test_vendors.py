"""Our verdicts are those of Moonshot's and MiniMax's own programs, which are run unchanged where they are at hand."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.answer import Answer
from dovetail.client.endpoint import Exchange
from dovetail.events import Call, Message
from dovetail.grammar.schemas.check import checker
from dovetail.verify.outcome import Outcome
from dovetail.verify.suites import Calls
from dovetail.verify.suites.calls import valid_calls


def loaded(file: Path, name: str) -> ModuleType:
    """A program's module; nothing is written beside it."""
    folders = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(shared_data: Path) -> Iterator[Path]:
    if not (shared_data / "verifiers").is_dir():
        pytest.skip("the vendors' verifiers (../shared/data/verifiers) are not beside this checkout")
    before, bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    yield shared_data / "verifiers"
    sys.dont_write_bytecode = bytecode
    for name in set(sys.modules) - before:
        if name.startswith(("validator", "kvv_")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def minimax(programs: Path) -> Any:
    return loaded(programs / "minimax-provider-verifier/validator/__init__.py", "validator").ToolCallsValidator()


@pytest.fixture(scope="module")
def moonshot(programs: Path) -> Any:
    return loaded(programs / "kimi-vendor-verifier/tests/tool_call_json_schema/validator.py", "kvv_schemas")


SCHEMAS = (
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}, "additionalProperties": False},
    {"type": "object", "properties": {"day": {"type": "string", "format": "date"}, "format": {"enum": ["a"]}}},
    {"anyOf": [{"required": ["city"]}, {"required": ["n"]}]},
    {"type": "no such type"},
    {},
    None,
)
NAMES = st.sampled_from(["first", "second", "third"])
TOOLS = st.lists(st.tuples(NAMES, st.sampled_from(SCHEMAS)), max_size=3)
ARGUMENTS = st.one_of(
    st.sampled_from(['{"city": "Rome"}', "{}", '{"n": 5}', '{"day": "no"}', '{"format": "b"}', "{", "", "[]", "null"]),
    st.dictionaries(st.sampled_from(["city", "n", "day"]), st.integers(0, 5) | st.text(max_size=3)).map(json.dumps),
)
ANSWERS = st.tuples(
    st.sampled_from(["tool_calls", "stop", "length", "content_filter"]),
    TOOLS,
    st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3),
)


def request(tools: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"tools": [{"function": {"name": name, "parameters": schema}} for name, schema in tools]}


def response(finish: str, calls: list[tuple[str, str]]) -> dict[str, Any]:
    made = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"choices": [{"finish_reason": finish, "message": {"tool_calls": made}}]}


@given(st.lists(ANSWERS, max_size=3))
def test_figures_of_calls_are_those_of_minimaxs_program(minimax: Any, answers: Any) -> None:
    theirs = [minimax.validate(request(tools), response(finish, calls), "success") for finish, tools, calls in answers]
    outcomes = []
    for i, (finish, tools, calls) in enumerate(answers):
        message = Message("", "", tuple(Call("", name, arguments) for name, arguments in calls))
        exchange = Exchange(request(tools), Answer(200, "", message, finish), "")
        valid = valid_calls(exchange) if finish == "tool_calls" else None
        outcomes.append(Outcome(0, "calls", str(i), 0, str(i), measures={"finish": finish, "valid": valid}))
        assert valid == theirs[i]["tool_calls_valid"]
    summary, figures = minimax.compute_summary(theirs), Calls([]).figures(outcomes)
    assert {name: figures[name].value for name in ("finish_stop", "finish_tool_calls", "finish_others")} == {
        name: summary[f"tool_calls_{name}"] for name in ("finish_stop", "finish_tool_calls", "finish_others")
    }
    assert figures["successful_tool_call_count"].value == summary["tool_calls_successful_count"]
    assert figures["schema_validation_error_count"].value == summary["tool_calls_schema_validation_error_count"]


@pytest.mark.slow
def test_arguments_for_walles_schemas_are_valid_where_moonshots_program_finds_them_so(moonshot: Any) -> None:
    draw, verdicts = random.Random(0), []
    for case in moonshot.load_cases(moonshot.DEFAULT_CASE_DIR):
        schema = json.loads(case.schema_text)
        ours = checker(schema, "parameters")
        for arguments in (json.dumps(instance(schema, schema, draw)) for _ in range(4)):
            theirs, message = moonshot.validate_arguments(schema, arguments)
            assert (ours.fault(arguments) is None) == theirs, (case.suite, case.line, arguments, message)
            verdicts.append(theirs)
    assert len(verdicts) > 800 and 0.2 < sum(verdicts) / len(verdicts) < 0.9


def instance(schema: Any, root: Any, draw: random.Random, depth: int = 0) -> Any:
    """A value that may be valid: its parts are of the schema's types most of the time."""
    if not isinstance(schema, dict) or depth > 4 or draw.random() < 0.1:
        return draw.choice([None, True, 3, 2.5, "text", [], {}])
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#").split("/")[1:]:
            target = target.get(part, {}) if isinstance(target, dict) else {}
        return instance(target, root, draw, depth + 1)
    if options := schema.get("anyOf"):
        return instance(draw.choice(options), root, draw, depth + 1)
    if values := schema.get("enum"):
        return draw.choice(values)
    kind = schema.get("type", "object")
    kind = draw.choice(kind) if isinstance(kind, list) and kind else kind
    if kind == "object":
        names = [name for name in schema.get("properties", {}) if draw.random() < 0.9]
        return {name: instance(schema["properties"][name], root, draw, depth + 1) for name in names}
    if kind == "array":
        return [instance(schema.get("items", {}), root, draw, depth + 1) for _ in range(draw.randrange(3))]
    return {"string": "text", "integer": draw.randrange(-2, 9), "number": 1.5, "boolean": True}.get(kind)
