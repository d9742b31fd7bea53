"""The measurement of constraints: its requests, its counts, and a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import dovetail

pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")

from benchmarks import tables
from benchmarks.constraint import __main__ as command
from benchmarks.constraint import coverage, decode, plot, report, tools
from benchmarks.constraint.instances import instances
from benchmarks.constraint.keywords import KEYWORDS, Case
from benchmarks.constraint.model_tags import MODEL_TAGS
from benchmarks.constraint.vocabulary import CONTROL, Vocabulary
from dovetail.grammar.matcher import compile

pytestmark = pytest.mark.slow

_SMALL = 2000


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("vocabulary")
    return Vocabulary("kimi_k25", folder / "nothing here", folder, _SMALL)


def test_a_vocabulary_has_its_size_and_the_familys_markers(vocabulary: Vocabulary) -> None:
    tokenizer = vocabulary.tokenizer
    assert tokenizer.vocab_size == _SMALL + CONTROL
    spelled = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    assert len(set(spelled)) == len(spelled) and b"" not in spelled
    assert tokenizer.control["<|tool_call_begin|>"] >= _SMALL
    assert tokenizer.decode(tokenizer.encode('{"city": "é"}')) == '{"city": "é"}'


def test_the_same_vocabulary_for_others(vocabulary: Vocabulary) -> None:
    other = dovetail.tokenizer(vocabulary.hugging_face)
    both = (vocabulary.tokenizer, other)
    assert len({it.vocab_size for it in both}) == 1
    spelled = [[it.token_bytes(token) for token in range(it.vocab_size)] for it in both]
    assert spelled[0] == spelled[1]


def test_tools_are_as_many_as_wanted_and_others_for_another_seed() -> None:
    made = [tools.tools(20, seed) for seed in range(3)]
    names = {tool["function"]["name"] for some in made for tool in some}
    assert len(names) == 60
    for tool in made[0]:
        parameters = tool["function"]["parameters"]
        jsonschema.Draft202012Validator.check_schema(parameters)
        keys = list(parameters["properties"])
        assert keys == sorted(keys) and parameters["required"] == keys[:2]


@pytest.mark.parametrize("name", sorted(MODEL_TAGS))
def test_an_answer_is_allowed_and_every_kind_is_in_it(name: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary(name, tmp_path / "nothing here", tmp_path, _SMALL)
    asked = tools.tools(2)
    answer = tools.answer(name, vocabulary.tokenizer, asked)
    grammar = dovetail.format(name).grammar(asked, thinking=False)
    assert grammar is not None
    matcher = compile(grammar, vocabulary.tokenizer, vocabulary.ends)
    assert all(map(matcher.advance, answer.ids))
    missing = set(tools.KINDS) - set(answer.kinds)
    assert missing <= {"prose"} and len(answer.kinds) == len(answer.ids)
    spelled = {
        kind: b"".join(
            vocabulary.tokenizer.token_bytes(token)
            for token, it in zip(answer.ids, answer.kinds, strict=True)
            if it == kind
        ).decode("utf-8", "replace")
        for kind in tools.KINDS
    }
    assert "def area(shapes)" in spelled["strings"] and "def area" not in spelled["envelope"]
    assert "order" in spelled["keys"] and "0.0625" in spelled["numbers"] and "true" in spelled["envelope"]


@pytest.mark.parametrize("case", KEYWORDS, ids=lambda case: case.title)
def test_cases_are_what_they_say(case: Case) -> None:
    validator = jsonschema.Draft202012Validator(case.schema, format_checker=jsonschema.FormatChecker())
    assert all(validator.is_valid(json.loads(text)) for text in case.valid)
    for text in case.invalid:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        assert not validator.is_valid(value) or case.title in _UNKNOWN_HERE, text


#: Formats for which the validator wants packages that are not among the project's.
_UNKNOWN_HERE = ("format: uri", "format: date-time")


def test_values_are_told_apart_by_the_validator() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"]}
    valid, invalid = instances(schema, 10)
    validator = jsonschema.Draft202012Validator(schema)
    assert len(valid) == len(invalid) == 10
    assert all(map(validator.is_valid, valid)) and not any(map(validator.is_valid, invalid))
    assert (valid, invalid) == instances(schema, 10)


def test_verdicts() -> None:
    def takes(*texts: str) -> coverage.Takes:
        return texts.__contains__

    assert coverage.verdict(None, "ab", "cd") == "refused"
    assert coverage.verdict(takes("a", "b"), "ab", "cd") == "enforced"
    assert coverage.verdict(takes("a"), "ab", "cd") == "too narrow"
    assert coverage.verdict(takes("a", "b", "c"), "ab", "cd") == "in part"
    assert coverage.verdict(takes("a", "b", "c", "d"), "ab", "cd") == "ignored"
    assert coverage.verdict(takes("a", "c"), "ab", "cd") == "narrow and ignored"


@pytest.mark.parametrize("case", KEYWORDS, ids=lambda case: case.title)
def test_keywords_that_a_library_does_not_enforce_are_listed_or_refused(case: Case) -> None:
    """Law 11: what a grammar library cannot enforce is known by a lint."""
    figures = coverage.keyword(case)
    for title in coverage.WRITERS:
        enforced = "ignored" not in figures[title] and "in part" not in figures[title]
        assert enforced or figures[title].endswith("listed"), title


@pytest.mark.proof
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def decoded(**options: Any) -> list[dict[str, Any]]:
        return []

    monkeypatch.setattr(decode, "measure", decoded)
    monkeypatch.setattr(decode, "forced", decoded)
    small = "--tools 1 3 --rounds 1 --passes 2 --grammars 3 --requests 2 --values 2 --tokens 2000"
    line = ["bench", *small.split(), "--data", str(tmp_path), "--peers", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*line, "--plot", str(tmp_path / "drawn"), "--json"])
    command.main()
    results = json.loads(capsys.readouterr().out)
    titles = ["Dovetail: Lark, llguidance", "Dovetail's tag, xgrammar", "xgrammar's own tag"]
    assert [(cell["tools"], cell["who"]) for cell in results["compile"]] == [(n, who) for n in (1, 3) for who in titles]
    assert not [cell for part in ("compile", "masks", "memory", "loop") for cell in results[part] if "error" in cell]
    for cell in results["masks"]:
        assert [len(one) for one in cell["fill"]] == [cell["tokens"]] * 2 and len(cell["kinds"]) == cell["tokens"]
    # vLLM is not installed, and the report says so.
    assert set(results["missing"].values()) == {"not installed"} and len(results["missing"]) == 3
    assert [cell["keyword"] for cell in results["keywords"]] == [case.title for case in KEYWORDS]
    assert "<svg" in (tmp_path / "drawn" / "masks.svg").read_text()
    made = report.sheets(results)
    assert len(made) == 5 and all(len(row) == len(headings) for _, headings, rows in made for row in rows)
    tables.show(made, command.notes(results), as_markdown=True, words=report.WORDS)
    assert "| kimi_k25 |" in capsys.readouterr().out
    assert plot.draw(results, tmp_path / "again").is_file()


def test_walles_schemas(shared_data: Path) -> None:
    figures = coverage.collection(shared_data, 2)
    left = [it for title in coverage.WRITERS for it in figures["wrong"][title] if "ignored" in it or "in part" in it]
    assert left and all(it.endswith("listed") for it in left)
    assert figures["schemas"] == 213 and all(sum(it.values()) == 213 for it in figures["verdicts"].values())
    assert len(tools.walle(shared_data)) == 213
