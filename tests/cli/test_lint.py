"""`dovetail lint`: its output and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Dovetail


def tool(called: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": called, "parameters": {"type": "object", "properties": properties}},
    }


FINE = tool("fine", city={"type": "string"})
TAGS = tool("tags", tags={"type": "array", "uniqueItems": True}, name={"type": "string", "maxLength": 3})
SLOPPY = tool("sloppy", a={"minLength": -1}, b={"type": "float"})
BROKEN = tool("broken", a={"minLength": -1})
BROKEN["function"]["strict"] = True
#: Invalid as a whole: in draft 4, `exclusiveMinimum` needs a `minimum`.
NONE = {"name": "none", "parameters": {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True}}


def test_lint_lists_unenforced_keywords_and_refused_schemas(dovetail: Dovetail) -> None:
    none = {"type": "function", "function": NONE}
    done = dovetail("lint", "-", input=json.dumps([FINE, TAGS, BROKEN, SLOPPY, none]))
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "tags #/properties/tags/uniqueItems not enforced: checked afterwards" in text
    assert "tags #/properties/name/maxLength not enforced by xgrammar: checked afterwards" in text
    assert "broken #/properties/a/minLength refused: -1 is less than the minimum of 0" in text
    assert "sloppy #/properties/a/minLength not enforced: left out, because it is no JSON Schema" in text
    assert "none # not enforced: left out, because it is no JSON Schema" in text
    assert "1 of 5 tools are enforced in full" in text


NULLABLE = tool("nullable")
NULLABLE["function"] |= {"strict": True, "parameters": {"type": ["object", "null"]}}
DEEP = tool("deep", a={"multipleOf": 999_999_937})
NAMELESS = {"type": "function", "function": {"name": "no name"}}


@pytest.mark.parametrize("language", [(), ("--format", "kimi_k2"), ("--format", "pythonic")])
def test_a_refusal_without_a_pointer_is_shown_in_full(dovetail: Dovetail, language: tuple[str, ...]) -> None:
    done = dovetail("lint", "-", *language, input=json.dumps([FINE, NULLABLE, DEEP, NAMELESS]))
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert 'nullable refused: parameters must be of type "object": arguments have names' in text
    assert "deep refused: #/properties/a/multipleOf makes more than 50000 states of divisors" in text
    assert "no name refused: name 'no name' must be 1 to 128 letters" in text
    assert "1 of 4 tools are enforced in full" in text


def test_a_schema_that_refers_to_itself_is_left_to_the_check(dovetail: Dovetail) -> None:
    itself = tool("itself", a={"type": "string", "allOf": [{"$ref": "#/properties/a"}]})
    done = dovetail("lint", "-", "--format", "pythonic", "--for", "lark", input=json.dumps([itself]))
    assert (done.returncode, done.stderr) == (1, "")
    assert "itself #/properties/a/allOf not enforced by llguidance: checked afterwards" in " ".join(done.stdout.split())


def test_nothing_to_tell(dovetail: Dovetail, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"messages": [], "tools": [FINE]}))
    done = dovetail("lint", tmp_path / "request.json")
    assert (done.returncode, done.stdout) == (0, "1 of 1 tools are enforced in full\n")
    assert dovetail("lint", "-", "--for", "lark", input=json.dumps([tool("n", name={"maxLength": 3})])).returncode == 0


@pytest.mark.parametrize(
    "language", [("--format", "kimi_k25"), ("--format", "qwen3_coder"), ("--model", "{pair}/target")]
)
def test_as_json_and_for_a_language(dovetail: Dovetail, pair: Path, language: tuple[str, str]) -> None:
    words = [word.replace("{pair}", str(pair)) for word in language]
    done = dovetail("lint", "-", *words, "--for", "lark", "--json", input=json.dumps([TAGS, BROKEN, SLOPPY]))
    assert done.returncode == 1
    first, second, third = json.loads(done.stdout)
    assert first["tool"] == "tags" and first["problem"] is None
    assert "#/properties/tags/uniqueItems" in first["unenforced"]["lark"]
    assert list(first["unenforced"]) == ["lark"]
    assert first["left_out"] == {}
    assert second["problem"].startswith("#/properties/a/minLength: ")
    assert third == {
        "tool": "sloppy",
        "unenforced": {"lark": ["#/properties/a/minLength"]},
        "left_out": {"#/properties/a/minLength": "is no JSON Schema"},
        "problem": None,
    }


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ("{", "standard input is not JSON"),
        ("3", "must hold a JSON list of tools"),
        ("{}", "must hold a JSON list of tools"),
        ("[3]", "tools[0] must be an object"),
        ('[{"type": "function", "function": {"name": "f", "parameters": 3}}]', "must be a JSON Schema object"),
    ],
)
def test_input_that_is_not_a_list_of_tools_is_refused(dovetail: Dovetail, input: str, message: str) -> None:
    done = dovetail("lint", "-", input=input)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_unknown_files_formats_and_grammars_are_refused(dovetail: Dovetail) -> None:
    assert "nowhere.json cannot be read" in dovetail("lint", "nowhere.json").stderr
    assert dovetail("lint", "-", "--format", "kimi_k99", input="[]").returncode == 2
    assert dovetail("lint", "-", "--for", "other", input="[]").returncode == 2


@pytest.mark.parametrize("language", [(), ("--format", "kimi_k25")])
def test_lint_of_custom_tools(dovetail: Dovetail, language: tuple[str, ...]) -> None:
    def custom(name: str, definition: str | None) -> dict[str, Any]:
        shape = {"type": "grammar", "grammar": {"syntax": "regex", "definition": definition}}
        return {"type": "custom", "custom": {"name": name} | ({"format": shape} if definition else {})}

    tools = [custom("text", None), custom("digits", "[0-9]+"), custom("words", r"\w+"), custom("broken", "(")]
    done = dovetail("lint", "-", *language, input=json.dumps(tools))
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "words custom.format.grammar.definition not enforced by xgrammar: checked afterwards" in text
    assert "refused: a group has no end" in text
    assert "2 of 4 tools are enforced in full" in text
