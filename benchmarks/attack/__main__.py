"""Attacks a served demo model row by row with real sockets, and prints what was measured.

Exits with 1 if a row fails. `--only NAME` runs some of the attacks; `--markdown` prints the table of docs/attacks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks import tables
from benchmarks.attack import on_connections, on_load, on_payloads, on_process, on_protocol, on_upstream
from benchmarks.attack.rows import ATTACKS, Row
from benchmarks.attack.served import LAGS

_MODULES = (on_connections, on_protocol, on_payloads, on_load, on_upstream, on_process)
_MOST_LAG_S = 0.5
_HEADINGS = ["attack", "asked", "measured", ""]


def main() -> int:
    assert _MODULES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ATTACKS, nargs="*", default=[*ATTACKS], metavar="NAME")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(_rows(arguments.only))
    lines = [[row.attack, row.asked, row.measured, "pass" if row.passed else "FAIL"] for row in rows]
    notes = [f"{sum(row.passed for row in rows)} of {len(rows)} pass; {tables.machine()}"]
    tables.show([("Attacks", _HEADINGS, lines)], notes, as_markdown=arguments.markdown, words=_HEADINGS)
    return 0 if all(row.passed for row in rows) else 1


async def _rows(names: list[str]) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        print(f"{name} …", file=sys.stderr)
        try:
            async for row in ATTACKS[name]():
                print(f"  {'pass' if row.passed else 'FAIL'}  {row.attack}: {row.measured}", file=sys.stderr)
                rows.append(row)
        except Exception as error:  # one attack that cannot run must not hide the others
            print(f"  FAIL  {name}: {error!r}", file=sys.stderr)
            rows.append(Row(name, "", f"{error!r:.200}", False))
    if LAGS:
        worst = max(LAGS)
        asked, measured = f"never above {_MOST_LAG_S} s", f"{worst:.2f} s at most, in {len(LAGS)} servers"
        rows.append(Row("all of these: the lag of the event loop", asked, measured, worst <= _MOST_LAG_S))
    return rows


if __name__ == "__main__":
    sys.exit(main())
