"""BFCL v4 as a corpus of the suite `calls`: questions with tools, whether to call, and which calls are right.

The user has the data: the wheel `bfcl-eval` of PyPI, or its folder `bfcl_eval/data`. Only categories of one turn are
read, because the others run programs of BFCL's own. What counts as a right answer is BFCL's definition
(github.com/ShishirPatil/gorilla, `ast_checker`): strings are compared without case, spaces and some punctuation, and an
empty string among the possible values makes a parameter optional.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.events import Call
from dovetail.verify.suites.base import Case

#: Categories that are read if none is chosen: 1,240 cases.
CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
#: The other categories that can be read. Java's and JavaScript's answers are in those languages and not compared.
MORE = (
    "simple_java",
    "simple_javascript",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_relevance",
    "live_irrelevance",
)
_OF_ANOTHER_LANGUAGE = ("simple_java", "simple_javascript")
_TYPES = {
    **dict.fromkeys(("dict", "HashMap"), "object"),
    **dict.fromkeys(("tuple", "ArrayList", "Array"), "array"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("any", "String", "char"), "string"),
    "long": "integer",
    "Boolean": "boolean",
}
_NAME = re.compile(r"[^A-Za-z0-9_-]")
_PUNCTUATION = re.compile(r"[ ,./\-_*^]")


def read_bfcl(path: str, categories: Sequence[str] = CATEGORIES) -> list[Case]:
    """The cases of `categories`. Raises `InvalidRequest` for an unknown category, and for a path without its data."""
    known = (*CATEGORIES, *MORE)
    if unknown := next((name for name in categories if name not in known), None):
        raise InvalidRequest(f"--bfcl-categories has {unknown!r:.80}; it knows {', '.join(known)}")
    folder = _folder(path)
    return [case for category in categories for case in _cases(folder, category)]


def _folder(path: str) -> Any:
    """The folder with the data: on disk or in the wheel."""
    if path.endswith(".whl"):
        try:
            return zipfile.Path(path) / "bfcl_eval" / "data"
        except (OSError, zipfile.BadZipFile):
            raise InvalidRequest(f"{path} cannot be read as a wheel") from None
    return Path(path)


def _cases(folder: Any, category: str) -> Iterator[Case]:
    name = f"BFCL_v4_{category}.json"
    answers = {}
    if "relevance" not in category and category not in _OF_ANOTHER_LANGUAGE:
        answers = {each["id"]: each["ground_truth"] for each in _lines(folder / "possible_answer" / name)}
    for entry in _lines(folder / name):
        try:
            yield _case(entry, category, answers.get(entry["id"]))
        except (LookupError, TypeError, AttributeError):
            raise InvalidRequest(f"{name} has an entry without question and function: {entry!r:.80}") from None


def _lines(file: Any) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, KeyError):
        what = "the wheel bfcl-eval of PyPI, or its folder bfcl_eval/data"
        raise InvalidRequest(f"--bfcl has no {file.name}: it takes {what}") from None
    except ValueError:
        raise InvalidRequest(f"{file.name} has a line that is no JSON") from None


def _case(entry: Mapping[str, Any], category: str, answers: Any) -> Case:
    functions = [
        {"name": _named(each["name"]), "description": each["description"], "parameters": _schema(each["parameters"])}
        for each in entry["function"]
    ]
    request = {
        "messages": entry["question"][0],
        "tools": [{"type": "function", "function": function} for function in functions],
    }
    right = [{_named(name): values for name, values in each.items()} for each in answers] if answers else None
    expect = {"category": category, "calls": not category.endswith("irrelevance"), "answers": right}
    return Case(f"bfcl/{entry['id']}", request=request, expect=expect)


def _named(name: str) -> str:
    """A name that every API takes: OpenAI's has no dots."""
    return _NAME.sub("_", name)


def _schema(schema: Any) -> Any:
    """BFCL's description of a value as JSON Schema."""
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value for key, value in schema.items() if key not in ("type", "optional")}
    if kind := schema.get("type"):
        made["type"] = _TYPES.get(kind, kind)
    if isinstance(schema.get("properties"), Mapping):
        made["properties"] = {name: _schema(each) for name, each in schema["properties"].items()}
    if "items" in schema:
        made["items"] = _schema(schema["items"])
    return made


def right(case: Case, calls: Sequence[Call]) -> bool | None:
    """Whether `calls` are an answer to a case of BFCL; None if that cannot be known."""
    answers = case.expect.get("answers")
    if answers is None:
        by_label = case.expect["category"].endswith("relevance")
        return bool(calls) == case.expect["calls"] if by_label else None
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.request["tools"]}
    left = [*calls]
    for answer in answers:
        ((name, values),) = answer.items()
        fits = next((call for call in left if call.name == name and _fits(call, values, schemas[name])), None)
        if fits is None:
            return False
        left.remove(fits)
    return not left


def _fits(call: Call, values: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]) -> bool:
    """Whether a call's arguments are among the possible `values` of each parameter."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False
    properties = schema.get("properties", {})
    if not isinstance(arguments, Mapping) or any(name not in arguments for name in schema.get("required", ())):
        return False
    given = all(
        name in values and _possible(value, values[name], properties.get(name)) for name, value in arguments.items()
    )
    return given and all("" in possible for name, possible in values.items() if name not in arguments)


def _possible(value: Any, possible: Sequence[Any], schema: Any) -> bool:
    if schema is None or not _typed(value, schema):
        return False
    return any(_equal(value, each) for each in possible if each != "" or schema.get("type") == "string")


def _typed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether no float stands for an integer. Other wrong types are equal to no possible value."""
    if isinstance(value, list):
        return all(_typed(each, schema.get("items") or {}) for each in value)
    return schema.get("type") != "integer" or not isinstance(value, float)


def _equal(value: Any, possible: Any) -> bool:
    if isinstance(value, str) and isinstance(possible, str):
        return _standard(value) == _standard(possible)
    if isinstance(value, list) and isinstance(possible, list):
        return len(value) == len(possible) and all(map(_equal, value, possible))
    if isinstance(value, Mapping) and isinstance(possible, Mapping):
        # Deeper objects have one value and no list of them.
        options = {name: each if isinstance(each, list) else [each] for name, each in possible.items()}
        given = all(name in options and any(_equal(each, o) for o in options[name]) for name, each in value.items())
        return given and all("" in others for name, others in options.items() if name not in value)
    return isinstance(value, bool) == isinstance(possible, bool) and bool(value == possible)


def _standard(text: str) -> str:
    return _PUNCTUATION.sub("", text).lower().replace("'", '"')
