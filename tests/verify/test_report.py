"""One result in four forms: JSON with exactly the promised keys, a terminal, JUnit XML, an HTML page."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from dovetail.client.transport import Reply
from dovetail.errors import InvalidRequest
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Header, Journal, digest
from dovetail.verify.outcome import Failure, Outcome, Untested
from dovetail.verify.report import html, junit, results, show
from dovetail.verify.report.result import UntestedResult, exit_code
from dovetail.verify.runner import Plan, announced
from dovetail.verify.suites.base import Figure
from dovetail.verify.suites.protocol import Protocol
from dovetail.verify.suites.speculation import Speculation
from tests.verify.broken import BROKEN
from tests.verify.harness import AppTransport, Only, endpoint, gateway, verified

URLS = ("http://one", "http://two")
SUITES = (Protocol(), Speculation())
BAD = Failure("protocol", "call/auto", "reader", "evil <script>\x1b[31m\x00 [bold]")


def outcome(number: int, *failures: Failure, endpoint: int = 0, because: str = "", **fields: Any) -> Outcome:
    untested = Untested("protocol", because) if because else None
    case = f"case-{number}"
    return Outcome(endpoint, "protocol", case, 0, case, tuple(failures), untested, **fields)


def printed(outcomes: Sequence[Outcome], endpoints: int = 1) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(results(SUITES, outcomes, endpoints), URLS, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_json_has_exactly_the_promised_keys() -> None:
    outcomes = [outcome(0), outcome(1, BAD), outcome(2, because="no tools"), outcome(3, because="no tools")]
    decoded = json.loads(msgspec.json.encode(results(SUITES, outcomes)))
    assert set(decoded) == {"failures", "suites", "not_tested"}
    assert [set(failure) for failure in decoded["failures"]] == [{"suite", "case", "step", "evidence"}]
    assert {name: set(suite) for name, suite in decoded["suites"].items()} == {"protocol": {"n", "passed", "figures"}}
    assert (decoded["suites"]["protocol"]["n"], decoded["suites"]["protocol"]["passed"]) == (2, 1)
    assert decoded["not_tested"] == [{"suite": "protocol", "because": "2 of 4 cases: no tools"}]


def test_every_figure_has_its_n() -> None:
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[Only(s, "greedy/call", "call/") for s in SUITES])
    suites = results(SUITES, outcomes).suites
    assert suites["speculation"].figures["tokens per step"].value > 1  # type: ignore[operator]
    assert all(figure.n > 0 for suite in suites.values() for figure in suite.figures.values())


def test_two_endpoints_are_compared_pair_by_pair() -> None:
    outcomes = [outcome(i, endpoint=0) for i in range(20)]
    outcomes += [outcome(i, *([BAD] if i < 8 else []), endpoint=1) for i in range(20)]
    result = results(SUITES, outcomes, 2)
    figures = result.suites["protocol"].figures
    assert figures["difference"].value == 0.4 and figures["difference"].n == 20
    assert 0.1 < (figures["difference"].low or 0) < 0.4 < (figures["difference"].high or 0) < 0.7
    assert figures["mcnemar_p"].value == 2 / 2**8
    assert result.beside is not None and result.beside.suites["protocol"].passed == 12
    assert results(SUITES, outcomes[:20], 2).suites["protocol"].figures.keys() == {"passed"}


@pytest.mark.parametrize(
    ("outcomes", "options", "code"),
    [
        ([outcome(0)], {}, 0),
        ([outcome(0, BAD)], {}, 1),
        ([outcome(0, BAD)], {"fail_on": ["reader"]}, 1),
        ([outcome(0, BAD)], {"fail_on": ["protocol"]}, 1),
        ([outcome(0, BAD)], {"fail_on": ["draft", "none"]}, 0),
        ([outcome(0), outcome(1, because="down")], {}, 2),
        ([outcome(0, because="down"), outcome(1, BAD)], {}, 1),
        ([outcome(0)], {"required": ["speculation"]}, 2),
        ([], {}, 2),
    ],
)
def test_the_exit_code_says_what_happened(outcomes: list[Outcome], options: dict[str, Any], code: int) -> None:
    options = {"fail_on": ["any"], "required": [], **options}
    assert exit_code(results(SUITES, outcomes), outcomes, **options) == code


def test_a_failure_of_the_second_endpoint_counts() -> None:
    outcomes = [outcome(0), outcome(0, BAD, endpoint=1)]
    assert exit_code(results(SUITES, outcomes, 2), outcomes, fail_on=["any"], required=[]) == 1


def test_a_missing_feature_is_no_fault_of_the_run() -> None:
    missing = msgspec.structs.replace(outcome(1), untested=Untested("protocol", "no tools", blocking=False))
    outcomes = [outcome(0), missing]
    assert exit_code(results(SUITES, outcomes), outcomes, fail_on=["any"], required=[]) == 0


def test_a_terminal_shows_steps_evidence_and_what_was_not_tested() -> None:
    text = printed([outcome(0), *(outcome(i, BAD) for i in range(1, 9)), outcome(9, because="\x1b[2Jdown [red]")])
    assert "protocol" in text and "reader: 8 failures" in text and "and 3 more" in text
    assert re.search(r"not tested +because *\nprotocol +1 of 10 cases: ␛\[2Jdown \[red\] *\n", text)
    assert "\x1b" not in text and "[bold]" in text
    empty = Figure(None, 0)
    result = results(SUITES, [outcome(0)])
    figures = {**result.suites["protocol"].figures, "nothing": empty}
    suite = msgspec.structs.replace(result.suites["protocol"], figures=figures)
    console = Console(file=io.StringIO(), width=120)
    show(msgspec.structs.replace(result, suites={"protocol": suite}), URLS, console)
    assert re.search(r"nothing +- +0", console.file.getvalue())  # type: ignore[attr-defined]


def test_what_was_not_tested_is_one_table_with_a_row_for_each_reason() -> None:
    untested = [
        UntestedResult("schema", "no tools"),
        UntestedResult("long", "down"),
        UntestedResult("calls", "no tools"),
    ]
    console = Console(file=io.StringIO(), width=120)
    show(msgspec.structs.replace(results(SUITES, []), not_tested=tuple(untested)), URLS, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"not tested +because\nschema, calls +no tools\nlong +down\n$", re.sub(" +\n", "\n", shown))


def test_a_terminal_shows_both_endpoints() -> None:
    text = printed([outcome(0), outcome(0, endpoint=1)], 2)
    assert "http://one" in text and "http://two" in text and "difference" in text
    assert "not tested" in printed([outcome(0, because="down")])


def test_junit_is_xml_with_every_case() -> None:
    outcomes = [outcome(0), outcome(1, BAD), outcome(2, because="down"), outcome(0, endpoint=1)]
    outcomes.append(msgspec.structs.replace(outcome(0), run=1))
    root = ElementTree.fromstring(junit(outcomes, URLS))
    assert [(suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in root] == [
        ("4", "1", "1"),
        ("1", "0", "0"),
    ]
    failure = root.find(".//failure")
    assert failure is not None and failure.get("type") == "reader" and "evil <script>" in (failure.text or "")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def test_a_page_stands_alone_and_has_each_failure() -> None:
    outcomes = [outcome(0), outcome(1, BAD), outcome(2, because="<b>down</b>")]
    page = Page(text := html(results(SUITES, outcomes), URLS))
    assert page.links == [] and "script" not in page.tags and "b" not in page.tags
    assert page.tags.count("details") == 1 and page.tags.count("svg") == 1
    assert "evil &lt;script&gt;" in text
    assert "Nothing failed" in html(results(SUITES, [outcome(0)]), URLS)
    assert "http://two" in html(results(SUITES, [outcome(0), outcome(0, endpoint=1)], 2), URLS)
    assert "<table" not in html(results(SUITES, [outcome(0, because="down")]), URLS)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    suite = Only(Protocol(), "call/", "finish/")
    header = Header(("http://app",), (None,), digest([suite]))
    file = tmp_path / "keep" / "journal.jsonl"
    whole = verified(endpoint(AppTransport(gateway())), suites=[suite], journal=Journal(file, header))
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join(lines[:4]) + b"\n" + lines[4][:20])  # killed within a line
    transport = AppTransport(gateway())
    again = verified(endpoint(transport), suites=[suite], journal=Journal(file, header))
    assert [outcome.key for outcome in again] == [outcome.key for outcome in whole]
    assert all(outcome.passed for outcome in again)
    asked = sum(b"Paris" in (body or b"") or b"Hello!" in (body or b"") for _, body in transport.requests)
    assert asked == len(suite.cases()) - 3
    assert len(Journal(file, header).outcomes) == len(suite.cases())


def test_cases_without_a_result_run_again(tmp_path: Path) -> None:
    file, header = tmp_path / "journal.jsonl", Header((), (), "")
    Journal(file, header).add(outcome(0, because="down"))
    assert Journal(file, header).outcomes == {}


def test_the_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    Journal(file, Header(("http://one",), (None,), ""))
    with pytest.raises(InvalidRequest, match="other URLs, models, formats, token limits, cases or references"):
        Journal(file, Header(("http://two",), (None,), ""))
    file.write_text("my diary\n")
    with pytest.raises(InvalidRequest, match="is no journal"):
        Journal(file, Header((), (), ""))


def test_a_bundle_has_what_is_needed_to_see_the_failure_again(tmp_path: Path) -> None:
    broken = next(each for each in BROKEN if each.name == "marker" or each.name == "a marker in the content")
    verified(endpoint(broken.make()), suites=[Only(Protocol(), "call/auto")], bundles=Bundles(tmp_path / "failures"))
    first = json.loads((tmp_path / "failures" / "protocol-call_auto-0.json").read_text())
    assert first["failures"][0]["step"] == "reader"
    (exchange,) = first["exchanges"]
    assert exchange["read_by_endpoint"]["content"] == "<|tool_calls_section_begin|>"
    assert exchange["read_by_us"]["content"] == ""
    assert exchange["text"].startswith("The user wants get_weather.</think><|tool_calls_section_begin|>")
    assert exchange["prompt"] == exchange["our_prompt"]
    assert exchange["request"]["tools"] and '"tool_calls"' in exchange["raw"]
    assert re.match(r"curl http://app/v1/chat/completions .*\$OPENAI_API_KEY", exchange["command"])


def test_an_endpoint_may_send_halves_of_surrogate_pairs(tmp_path: Path) -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b"Hello there", rb"Hello \ud800 </think>"))

    header = Header((), (), "")
    journal, bundles = Journal(tmp_path / "journal.jsonl", header), Bundles(tmp_path)
    options: Any = {"suites": [Only(Protocol(), "finish/stop")], "journal": journal, "bundles": bundles}
    (outcome,) = verified(endpoint(AppTransport(gateway(), change)), **options)
    assert outcome.failures and Journal(tmp_path / "journal.jsonl", header).outcomes
    bundle = json.loads((tmp_path / "protocol-finish_stop-0.json").read_text())
    assert "\ud800" in bundle["exchanges"][0]["read_by_endpoint"]["content"]


def test_what_a_run_can_show_is_told_before_it_begins() -> None:
    (one,) = announced(Plan([Protocol()]), 1)
    assert one.startswith("protocol: 40 cases from 19 conversations; if all pass, at most 17 % of")
    (two,) = announced(Plan([Protocol()], runs=3), 2)
    assert two.startswith("protocol: 120 cases from 19 conversations; a difference of")
