"""The result of a run, and its four forms: JSON, terminal, JUnit XML, HTML."""

from dovetail.verify.report.html import html
from dovetail.verify.report.junit import junit
from dovetail.verify.report.result import Result, SuiteResult, results
from dovetail.verify.report.terminal import show

__all__ = ["Result", "SuiteResult", "html", "junit", "results", "show"]
