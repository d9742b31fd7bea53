"""What the clients saw, collected for the page, and recorded so that a run of some clients keeps the others' rows."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clients import tasks
from clients.catalogue import CLIENTS, Client
from clients.features import FEATURES, Target, fault
from clients.runner import Outcome
from clients.scripted.agents import task_calls

NOT_OFFERED, NOT_TRIED = "–", "not tried"


@dataclass
class Row:
    """One client on one API.

    `passed`: the targets with which each feature passed.
    `faults`: why others did not: target, feature, reason.
    `skipped`: why the client could not be installed.
    `versions`: of its packages. `date`: when it was run.
    """

    title: str
    date: str
    passed: dict[str, list[str]] = field(default_factory=dict)
    faults: list[list[str]] = field(default_factory=list)
    skipped: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def tried(self) -> set[str]:
        """The features that the client's program has tried."""
        return {*self.passed, *(feature for _, feature, _ in self.faults)}

    def add(self, outcome: Outcome, target: Target, tools: str = "", lacks: Container[str] = ()) -> None:
        """Add what the client saw of `target`. `tools`, `lacks`: see `Client`."""
        saw = {**outcome.saw, **(_agent_turns(target, tools) if tools else {})}
        for feature in FEATURES:
            if feature.name in lacks:
                continue
            if feature.name in outcome.errors:
                self.faults.append([target.name, feature.name, outcome.errors[feature.name]])
            elif feature.name in saw:
                reason = fault(feature.name, saw[feature.name], target)
                if reason is None:
                    self.passed.setdefault(feature.name, []).append(target.name)
                else:
                    self.faults.append([target.name, feature.name, reason])
        if outcome.failed is not None or not (outcome.saw or outcome.errors):
            last = (outcome.stderr.strip().splitlines() or [""])[-1]
            reason = f"{outcome.failed or 'its program printed nothing'}: {last:.200}"
            self.faults.append([target.name, "program", reason])

    def cell(self, feature: str, lacking: Container[str] = ()) -> str:
        """yes, the targets that failed, or a mark for what was not tried. `lacking`: see `Client.lacks`."""
        failed = [target for target, name, _ in self.faults if name in (feature, "program")]
        if failed:
            return "no" if feature not in self.passed else f"not with {', '.join(failed)}"
        return "yes" if feature in self.passed else NOT_OFFERED if feature in lacking else NOT_TRIED


def title(client: Client) -> str:
    """The name of a client's row."""
    return f"{client.name}, {client.api}"


def _agent_turns(target: Target, tools: str) -> dict[str, Any]:
    """Whether an agent made the task's calls, turn by turn, whether each prompt went on from the turn before, and what
    the calls of the first turn returned."""
    turns = [line for line in target.completions if line["script"] == "edit"]
    made = [line["calls"] for line in turns]
    read, missing, *_ = [*(turns[1]["results"] if len(turns) > 1 else ()), "", ""]
    return {
        "turns": made == task_calls(tools) or made,
        "exact": next((line["differs"] for line in turns[1:] if line["differs"]), True),
        "both_results": (tasks.OLD in read and bool(missing)) or [read, missing],
        "failed_call": missing,
    }


class Record:
    """The last row of each client, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def keep(self, row: Row) -> None:
        """Record the row in place of the client's earlier one."""
        rows = {**self._read(), row.title: asdict(row)}
        self._file.write_text(json.dumps(list(rows.values()), indent=1))

    def _read(self) -> dict[str, dict[str, Any]]:
        # Anew each time, because other clients may run at the same time.
        rows = json.loads(self._file.read_text()) if self._file.is_file() else []
        return {row["title"]: row for row in rows}

    @property
    def rows(self) -> list[Row]:
        """The rows of all clients that have one, in the catalogue's order."""
        rows = self._read()
        return [Row(**rows[name]) for name in map(title, CLIENTS) if name in rows]

    @property
    def complete(self) -> bool:
        """Whether every client of the catalogue has a row."""
        return len(self.rows) == len(CLIENTS)
