"""What models write off the path is read as it was meant, however it is cut.

The corpus is data; `corpus` says what a case has. Beside the checkout may be another, rebuilt from public reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drift.corpus import Case, cases, cuts, fault, read

REPORTS = Path(__file__).parents[3] / "shared" / "data" / "drift"


def reports() -> Iterator[Case]:
    """The cases beside the checkout that have an output; the others are histories and requests."""
    for path in sorted(REPORTS.glob("*.json")):
        case: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "text" in case:
            meant = case["expected"]
            for call in meant["calls"]:
                call["arguments"] = json.loads(call["arguments"]) if call["arguments"] else ""
            yield Case(
                group=path.stem,
                kind=case["fault"],
                format=case["format"],
                thinking=case["thinking"],
                tools=case["tools"] or (),
                text=case["text"],
                finish=case["finish"],
                ids=case["mode"] == "ids",
                meant=meant,
                source=case["source"],
            )


def check(case: Case) -> None:
    first = None
    for cut in cuts(case):
        answer, defects = read(case, cut)
        first = first or (answer, defects)
        assert (answer, defects) == first, f"{cut} is read differently from the whole"
    assert first is not None
    assert fault(first[0], case.meant) is None, (case.text, first)


def _name(case: Case) -> str:
    return f"{case.group}-{case.kind}-{case.format}"


@pytest.mark.parametrize("case", [*cases()], ids=_name)
def test_read_as_meant(case: Case) -> None:
    check(case)


@pytest.mark.skipif(not REPORTS.is_dir(), reason="the cases of public reports (../shared/data/drift) are not here")
@pytest.mark.parametrize("case", [*reports()], ids=lambda case: case.group)
def test_reports_are_read_as_meant(case: Case) -> None:
    check(case)
