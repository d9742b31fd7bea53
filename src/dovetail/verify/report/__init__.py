"""The result of a run, and its four forms: JSON, terminal, JUnit XML, HTML."""

from collections.abc import Sequence
from pathlib import Path

from dovetail.client.page import page
from dovetail.verify.outcome import STEPS
from dovetail.verify.report.junit import junit
from dovetail.verify.report.result import Result, SuiteResult, results
from dovetail.verify.report.terminal import interval, number, show

__all__ = ["Result", "SuiteResult", "html", "junit", "results", "show"]


def html(result: Result, urls: Sequence[str]) -> str:
    """The result as one page: figures drawn as bars, each failure a click away. report.html is its template."""
    endpoints = [each for each in zip(urls, (result, result.beside), strict=False) if each[1] is not None]
    template = Path(__file__).with_name("report.html")
    return page(template, title="dovetail verify", endpoints=endpoints, steps=STEPS, interval=interval, number=number)
