"""The list of published chat templates in the docs: no template is read worse than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats import template_list


def _marks(cells: list[str]) -> list[bool]:
    """Whether calls are read at all, and the columns after that."""
    return [not cells[0].startswith("not read"), *(cell != "no" for cell in cells[1:])]


@pytest.mark.slow
def test_no_template_is_read_worse_than_the_list_says(shared_data: Path) -> None:
    written = (Path(__file__).parents[2] / "docs/templates.md").read_text(encoding="utf-8")
    table, _, _ = written.partition("## Why not")
    listed = {line.split(" | ")[0]: line.removesuffix(" |").split(" | ")[1:] for line in table.splitlines()}
    for row in template_list.rows(shared_data):
        cells = listed[f"| {row.name}"]
        before, after = _marks(cells), _marks(str(row).removesuffix(" |").split(" | ")[1:])
        assert all(now >= then for then, now in zip(before, after, strict=True)), (row, cells)
        if not after[0]:
            assert cells[0] == row.cells[0]


@pytest.mark.slow
@pytest.mark.proof
def test_each_response_template_reads_what_the_list_says(shared_data: Path) -> None:
    pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")
    page = (Path(__file__).parents[2] / "docs/templates.md").read_text(encoding="utf-8")
    _, _, listed = page.partition("## As a response template")
    for name, reason in template_list.responses(shared_data):
        assert not reason or f"| {name} |" in listed, reason
