"""JUnit XML, in the dialect that CI servers read: a test suite for each suite, a test case for each run of a case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree

from dovetail.verify.outcome import Outcome

#: Characters that XML 1.0 cannot have, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcomes: Sequence[Outcome], urls: Sequence[str]) -> str:
    root = ElementTree.Element("testsuites")
    ordered = sorted(outcomes, key=lambda outcome: (outcome.endpoint, outcome.suite))
    for (endpoint, name), group in groupby(ordered, key=lambda outcome: (outcome.endpoint, outcome.suite)):
        cases = [*group]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"{name} {urls[endpoint]}",
            tests=str(len(cases)),
            failures=str(sum(bool(case.failures) for case in cases)),
            skipped=str(sum(case.untested is not None for case in cases)),
        )
        for case in cases:
            _case(suite, case)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    name = outcome.case if outcome.run == 0 else f"{outcome.case} (run {outcome.run + 1})"
    case = ElementTree.SubElement(suite, "testcase", classname=f"dovetail.verify.{outcome.suite}", name=_text(name))
    for failure in outcome.failures:
        element = ElementTree.SubElement(case, "failure", type=failure.step, message=f"{failure.step} failed")
        element.text = _text(failure.evidence)
    if outcome.untested is not None:
        ElementTree.SubElement(case, "skipped", message=_text(f"not tested, because {outcome.untested.because}"))


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
