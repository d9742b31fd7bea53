"""The page of a run."""

from __future__ import annotations

from html.parser import HTMLParser
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from dovetail.bench.html import html
from dovetail.bench.plan import Plan
from dovetail.bench.report import show
from dovetail.bench.result import Client, Result
from dovetail.bench.runner import ratios
from tests.bench.scripted import Scripted
from tests.bench.test_known_times import measured, plan


class Page(HTMLParser):
    """The elements of a page, and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def result(of: Plan, *servers: Scripted, model: str = "m") -> Result:
    cells = measured(of, *servers)
    models: dict[str, str | None] = {cell.endpoint: model for cell in cells}
    return Result(("dovetail", "bench"), "1", "here", of, models, tuple(cells), tuple(ratios(cells)), Client(0.1, 1.0))


def tables(page: Page) -> int:
    return sum(tag == "table" for tag, _ in page.elements)


def test_every_cell_and_ratio_is_on_the_page() -> None:
    text = html(result(plan((100, 1024), (1, 4)), Scripted(drafts=True, refuses=())))
    page = Page(text)
    assert page.open == []  # every element is closed
    assert tables(page) == 3 + 3 * 4  # the ratios of each pair, and four figures for each way of drafting
    assert page.text.count("1.00 to 1.00") == 4 and page.text.count("2.00 to 2.00") == 8
    for figure in ("100", "200", "400", "800", "50"):  # tokens/s of 1 and 4 requests, without drafts and with; TTFT
        assert figure in page.text.split()
    assert not any(tag in ("script", "link", "img", "a", "iframe") for tag, _ in page.elements)
    assert not any(name in ("src", "href") or name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_empty_cells_and_wrong_calls_have_their_reason() -> None:
    short = html(result(plan((12, 100)), Scripted()))
    assert "its shortest prompt has" in Page(short).text
    wrong = html(result(plan(kinds=("calls",)), Scripted(arguments="{}")))
    assert "5 of 5 answers with calls are wrong" in Page(wrong).text and 'class="bad"' in wrong


def test_a_run_without_figures_has_a_page() -> None:
    page = Page(html(result(plan(), Scripted(status=500))))
    assert "answered 500: no" in page.text and tables(page) == 0


def test_hostile_text_stays_text() -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=y>\"'\x00"
    page = Page(html(msgspec.structs.replace(result(plan(), Scripted(), model=hostile), command=("a", hostile))))
    assert "<script>" in page.text and not any(tag in ("script", "img") for tag, _ in page.elements)


def test_answers_that_are_held_back_are_named_on_page_and_table() -> None:
    made = result(plan(), Scripted(burst=20))
    console = Console(file=StringIO(), width=200)
    show(made, console)
    for text in (Page(html(made)).text, console.file.getvalue()):  # type: ignore[attr-defined]
        assert "100 x 1" in text and "4 of 4 answers begin with more than 16 tokens at once" in text


@pytest.mark.parametrize(("usage", "known"), [("every", True), ("end", False)])
def test_the_table_says_where_drafting_is_not_reported(usage: str, known: bool) -> None:
    console = Console(file=StringIO(), width=200)
    show(result(plan(), Scripted(usage=usage)), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("the endpoint reports no drafting" in printed) == (not known)
