"""One HTML page without scripts or links to elsewhere: figures drawn as bars, each failure a click away."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from dovetail.verify.outcome import STEPS, Failure
from dovetail.verify.report.result import Result, SuiteResult
from dovetail.verify.report.terminal import interval, number
from dovetail.verify.suites.base import Figure

_WIDTH = 240
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d1d1f }
table { border-collapse: collapse; margin: 1rem 0 } th, td { text-align: left; padding: .2rem .8rem .2rem 0 }
td.n { text-align: right } .minor { color: #6e6e73 } pre { white-space: pre-wrap; background: #f5f5f7; padding: .8rem }
summary { cursor: pointer } .bad { color: #b3261e } .good { color: #146c2e } svg { vertical-align: middle }
"""


def html(result: Result, urls: Sequence[str]) -> str:
    parts = [_endpoint(each, url) for url, each in zip(urls, (result, result.beside), strict=False) if each is not None]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>dovetail verify</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>dovetail verify</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def _endpoint(result: Result, url: str) -> str:
    rows = "".join(_suite(name, suite) for name, suite in result.suites.items())
    table = f"<table>\n<tr><th>suite</th><th>passed</th><th></th><th>95 % interval</th></tr>\n{rows}</table>\n"
    untested = "".join(
        f"<li>{escape(each.suite)} not tested, because {escape(each.because)}</li>\n" for each in result.not_tested
    )
    return (
        f"<h2>{escape(url)}</h2>\n{table if rows else ''}{_failures(result.failures)}"
        f"{f'<h3>Not tested</h3><ul>{untested}</ul>' if untested else ''}"
    )


def _suite(name: str, suite: SuiteResult) -> str:
    style = "good" if suite.passed == suite.n else "bad"
    passed = suite.figures["passed"]
    rows = (
        f'<tr><td>{escape(name)}</td><td class="n {style}">{suite.passed} of {suite.n}</td><td>{_bar(passed)}</td>'
        f"<td>{interval(passed)}</td></tr>\n"
    )
    for title, figure in suite.figures.items():
        if title != "passed":
            rows += (
                f'<tr class="minor"><td>{escape(title)}</td><td class="n">{number(figure.value)} (n {figure.n})</td>'
                f"<td>{_bar(figure)}</td><td>{interval(figure)}</td></tr>\n"
            )
    return rows


def _bar(figure: Figure) -> str:
    """A share as a bar with its interval as a line; nothing for what is no share."""
    if figure.value is None or figure.low is None or figure.high is None or not 0 <= figure.value <= 1:
        return ""
    low, value, high = (round(_WIDTH * min(max(each, 0.0), 1.0), 1) for each in (figure.low, figure.value, figure.high))
    return (
        f'<svg width="{_WIDTH}" height="14" role="img" aria-label="{number(figure.value)}">'
        f'<rect width="{_WIDTH}" height="14" fill="#e8e8ed"/><rect width="{value}" height="14" fill="#5b8def"/>'
        f'<line x1="{low}" x2="{high}" y1="7" y2="7" stroke="#1d1d1f" stroke-width="2"/></svg>'
    )


def _failures(failures: Sequence[Failure]) -> str:
    if not failures:
        return '<p class="good">Nothing failed.</p>\n'
    ordered = sorted(failures, key=lambda failure: STEPS.index(failure.step))
    parts = []
    for step, group in groupby(ordered, key=lambda failure: failure.step):
        each = "".join(
            f"<details><summary>{escape(failure.suite)} {escape(failure.case)}</summary>"
            f"<pre>{escape(failure.evidence)}</pre></details>\n"
            for failure in group
        )
        parts.append(f'<h3 class="bad">{step}</h3>\n{each}')
    return "".join(parts)
