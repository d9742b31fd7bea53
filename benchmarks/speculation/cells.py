"""Cells that were measured, in a file of one JSON line each: a run that was stopped goes on after the last one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Cells:
    """`rows`: of this run, in order. `settings`: what figures depend on; a cell measured by other settings is no match.

    Without a `file` nothing is kept. A last line that was cut off is not used.
    """

    def __init__(self, file: Path | None, settings: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._file, self._settings = file, settings
        self._lines: list[dict[str, Any]] = []
        if file is not None and file.exists():
            for text in file.read_text().splitlines():
                try:
                    self._lines.append(json.loads(text))
                except json.JSONDecodeError:
                    continue

    def kept(self, model: str, context: int, batch: int) -> list[dict[str, Any]] | None:
        """The rows of this cell; None if it is to be measured."""
        place = {"model": model, "context": context, "batch": batch}
        for line in self._lines:
            rows: list[dict[str, Any]] = line["rows"]
            if line["settings"] == self._settings and rows and all(rows[0][name] == place[name] for name in place):
                return rows
        return None

    def keep(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add a cell to the file."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write("\n" + json.dumps({"settings": self._settings, "rows": rows}))
