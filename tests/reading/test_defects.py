"""The list of defects is whole and current, in the code and in the docs."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.reading.defects import KINDS

ROOT = Path(__file__).parents[2]


def test_every_kind_that_is_listed_is_used() -> None:
    rooms = [*(ROOT / "src/dovetail/reading").glob("*.py"), *(ROOT / "src/dovetail/formats").rglob("*.py")]
    source = "".join(room.read_text(encoding="utf-8") for room in rooms if room.name != "defects.py")
    assert [kind for kind in KINDS if f'"{kind}"' not in source] == []


def test_every_kind_that_is_used_is_listed() -> None:
    for folder in ("reading", "formats"):
        for room in (ROOT / "src/dovetail" / folder).rglob("*.py"):
            used = re.findall(r'_(?:defect|abandon)\((?:[^"()]*, )?"([a-z_]+)"', room.read_text(encoding="utf-8"))
            assert set(used) <= KINDS.keys(), room.name


def test_the_docs_have_the_same_list() -> None:
    page = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    page = page.partition("## How near-misses are read")[2]
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", page, re.M))
    assert listed == dict(KINDS)
