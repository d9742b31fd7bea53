"""Law 11 on the whole engine: whatever the weights, through the engine with speculation on, a finished call is valid.

The whole proof is `python -m benchmarks.constraint.prove`; this is a small one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.constraint import prove, schemas
from tests.tools import tool

pytestmark = pytest.mark.slow


def proved(tools: dict[str, list[dict[str, Any]]], **options: Any) -> prove.Findings:
    ticks: list[int] = []
    counts = prove.prove("kimi_k25", tools, batch=16, tick=ticks.append, **options)
    assert counts.proved, msgspec.to_builtins(counts)
    assert not counts.refused and not counts.fewer
    assert sum(ticks) == options["calls"] * len(tools)
    assert counts.drafted > counts.accepted > 0
    return counts


@pytest.mark.parametrize("seed", [0, 1])
def test_finished_calls_of_random_weights_are_valid(seed: int) -> None:
    made_up = {name: [tool("f", schema)] for name, schema in schemas.made_up().items()}
    counts = proved(made_up, calls=3, seed=seed)
    assert counts.valid + counts.left == counts.calls >= 3 * len(made_up)


def test_and_for_schemas_of_others(shared_data: Path) -> None:
    read = schemas.read(shared_data / "schemas" / "walle")
    assert len(read) == 213
    some = {name: [tool("f", read[name])] for name in sorted(read)[::43]}
    counts = proved(some, calls=3)
    assert counts.valid + counts.left == counts.calls


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_name_that_is_not_declared_is_never_called(draft_tokens: int) -> None:
    """At level "names", where arguments are any object."""
    tools = {"names": [tool(name, {"type": "object", "properties": {"a": {"type": "null"}}}) for name in prove.NAMES]}
    options = {"calls": 20, "draft_tokens": draft_tokens}
    counts = prove.prove("kimi_k25", tools, strict="names", batch=16, **options)
    assert counts.proved and counts.calls >= 20 and counts.valid == counts.calls
    assert (counts.accepted > 0) is (draft_tokens > 0)


def test_the_proof_detects_schemas_that_are_not_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof can fail: a constraint that keeps nothing of the schema is found out."""
    strict = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"], "additionalProperties": False}
    grammar = prove.Format.grammar

    def loose(self: Any, tools: Any, **options: Any) -> Any:
        return grammar(self, tools, **options | {"strict": "names"})

    monkeypatch.setattr(prove.Format, "grammar", loose)
    counts = prove.prove("kimi_k25", {"loose": [tool("f", strict)]}, calls=10, batch=16)
    assert not counts.proved and len(counts.invalid) == counts.calls - counts.valid > 0


def test_schemas_that_are_no_objects_stand_under_a_key(tmp_path: Path) -> None:
    (tmp_path / "Test").mkdir()
    lines = '{"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}\n{"type": "object"}\n{"$id": "x", "$ref": "#"}\n'
    (tmp_path / "Test" / "valid.jsonl").write_text(lines)
    read = schemas.read(tmp_path)
    assert list(read) == ["Test:1", "Test:2", "Test:3"]
    assert read["Test:1"]["properties"]["value"]["$ref"] == "#/properties/value/$defs/a"
    assert read["Test:2"] == {"type": "object"}
    assert read["Test:3"]["properties"]["value"]["$ref"] == "#"
    with pytest.raises(ValueError, match=r"valid\.jsonl"):
        schemas.read(tmp_path / "Test")
