"""What Dovetail and other engines' own parsers make of outputs off the path: right answers by kind.

The outputs are those of tests/drift: the corpus, and prose about markup as an answer and inside reasoning. An answer is
right if its calls (names and arguments as JSON), its content and its reasoning are what was meant, but for whitespace
around texts. Where a call cannot be read, it is enough that its text reaches the client, in the call's arguments or as
content. Each engine is asked about the formats that it has a parser for.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import dovetail
from benchmarks import tables
from benchmarks.drift.cases import WELL_FORMED, prose, well_formed
from benchmarks.drift.engines import TITLES, Peer, reasons
from benchmarks.reading.workers import WorkerError
from tests.drift import corpus
from tests.drift.corpus import Case

DOVETAIL = "Dovetail"
#: What stands around the table in a page.
_BEGIN, _END = "<!-- The table of python -m benchmarks.drift --write -->\n", "<!-- End of the table -->\n"
_WORDS = (f"kind: {DOVETAIL}",)
#: Right or wrong, by engine, for each case that the engine was asked about.
Results = dict[str, dict[int, bool]]


def main() -> None:
    """Read everything and print."""
    options = _options()
    errors = Console(stderr=True)
    cases = [*well_formed(), *corpus.cases(), *prose()]
    if options.formats:
        cases = [case for case in cases if case.format in options.formats]
    peers: list[Peer] = []
    try:
        for engine in options.only:
            peers.append(Peer(engine, options.peers.absolute()))
        results, notes = _results(cases, peers, errors)
    except WorkerError as error:
        errors.print(f"[red]{error}[/]", highlight=False)
        sys.exit(2)
    finally:
        for peer in peers:
            peer.close()
    versions = {DOVETAIL: dovetail.__version__} | {TITLES[peer.engine]: peer.version for peer in peers}
    if options.json:
        print(json.dumps(_figures(cases, results, versions) | {"left out": notes}, indent=2, ensure_ascii=False))
    else:
        sheet = _sheet(cases, results, versions)
        lines = [*_same(results), *notes]
        if options.write:
            _write(options.write, sheet, lines)
        tables.show([sheet], lines, as_markdown=options.markdown, words=_WORDS, width=120)
    if options.wrong:
        for case in (cases[number] for number, right in results[DOVETAIL].items() if not right):
            errors.print(f"{case.group}, {case.format}: {case.kind}: {case.text!r}", markup=False, highlight=False)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--formats", nargs="+", default=[], metavar="NAME", help="only these formats")
    parser.add_argument("--only", nargs="*", choices=list(TITLES), default=list(TITLES), help="engines beside Dovetail")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder that setup.sh filled")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the table into this page")
    parser.add_argument("--wrong", action="store_true", help="also list what Dovetail reads wrong")
    parser.add_argument("--json", action="store_true", help="print figures, not a table")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args()


def _results(cases: Sequence[Case], peers: Sequence[Peer], errors: Console) -> tuple[Results, list[str]]:
    """What is right, and for each engine the formats that it could not be asked about."""
    results: Results = {engine: {} for engine in (DOVETAIL, *(TITLES[peer.engine] for peer in peers))}
    left_out = defaultdict(list)
    groups = defaultdict(list)
    for number, case in enumerate(cases):
        groups[case.format].append(number)
    with tables.progress(errors) as progress:
        bar = progress.add_task("", total=len(groups) * (1 + len(peers)))
        for name, numbers in groups.items():
            progress.update(bar, description=f"{DOVETAIL}: {name}", advance=1)
            for number in numbers:
                answer, _ = corpus.read(cases[number], list(corpus.cuts(cases[number]))[1])
                results[DOVETAIL][number] = is_right(answer, cases[number].meant)
            for peer in peers:
                progress.update(bar, description=f"{TITLES[peer.engine]}: {name}", advance=1)
                if peer.reads(name):
                    found = _read(peer, {number: cases[number] for number in numbers})
                    if any(found[n] for n in numbers if cases[n].group == WELL_FORMED and cases[n].meant["calls"]):
                        results[TITLES[peer.engine]] |= found
                    else:
                        left_out[TITLES[peer.engine]].append(name)
    return results, [
        f"{engine} reads no well-formed call of {', '.join(n)}: left out." for engine, n in left_out.items()
    ]


def _read(peer: Peer, cases: dict[int, Case]) -> dict[int, bool]:
    """What an engine reads right of a format, in the better way to set it up for either mode.

    Better is what reads more well-formed answers right, and then more of all.
    """
    found: dict[int, bool] = {}
    for mode in (False, True):
        batches = defaultdict(list)
        for number, case in cases.items():
            if reasons(case) is mode:
                batches[json.dumps([case.tools, case.thinking, case.finish])].append(number)
        ways: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        for batch in batches.values():
            for way, readings in enumerate(peer.ways([cases[number] for number in batch])):
                for number, answer in zip(batch, readings, strict=True):
                    ways[way][number] = is_right(answer, cases[number].meant)

        def better(right: dict[int, bool]) -> tuple[int, int]:
            well = sum(is_so for number, is_so in right.items() if cases[number].group == WELL_FORMED)
            return well, sum(right.values())

        found |= max(ways.values(), key=better, default={})
    return found


def is_right(answer: dict[str, Any], meant: dict[str, Any]) -> bool:
    """Whether an answer, of any engine, is what was meant."""
    if "error" in answer:
        return False
    asked = [call["arguments"] for call in meant["calls"]]
    unreadable = [args[corpus.MALFORMED] for args in asked if isinstance(args, dict) and corpus.MALFORMED in args]
    if unreadable:
        names = [call["name"] for call in answer["calls"]]
        if not names:
            return all(raw in answer["content"] for raw in unreadable)
        shown = "".join(call["arguments"] for call in answer["calls"])
        same = names == [call["name"] for call in meant["calls"]]
        return same and all(raw in shown or json.dumps(raw, ensure_ascii=False)[1:-1] in shown for raw in unreadable)
    return corpus.fault(answer, meant) is None


def _kinds(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(case.group for case in cases))


def _counted(cases: Sequence[Case], results: Results, engine: str, kind: str | None) -> tuple[int, int]:
    """How many of the engine's cases of a kind, or of all kinds, are right, and how many there are."""
    found = [right for number, right in results[engine].items() if kind in (None, cases[number].group)]
    return sum(found), len(found)


def _sheet(cases: Sequence[Case], results: Results, versions: dict[str, str]) -> tables.Sheet:
    rows = []
    for kind in [*_kinds(cases), None]:
        counts = [_counted(cases, results, engine, kind) for engine in results]
        own, *cells = [f"{right:,} / {count:,}" if count else "–" for right, count in counts]
        # In one cell, because a table has at most five columns.
        rows.append([f"{'all' if kind is None else kind.replace('_', ' ')}: {own}", *cells])
    headings = [_WORDS[0], *(f"{engine} {versions[engine]}" for engine in results if engine != DOVETAIL)]
    return "Right answers / cases", headings, rows


def _same(results: Results) -> list[str]:
    """Dovetail on the cases that each of the others was asked about."""
    lines = []
    for engine, found in results.items():
        if engine != DOVETAIL and found:
            own = sum(results[DOVETAIL][number] for number in found)
            lines.append(
                f"Of {engine}'s {len(found):,} cases Dovetail reads {own:,} right, {engine} {sum(found.values()):,}."
            )
    return lines


def _figures(cases: Sequence[Case], results: Results, versions: dict[str, str]) -> dict[str, Any]:
    kinds = {
        kind: {engine: _counted(cases, results, engine, kind) for engine in results} for kind in [*_kinds(cases), "all"]
    }
    kinds["all"] = {engine: _counted(cases, results, engine, None) for engine in results}
    wrong = {
        engine: [
            f"{cases[number].group}, {cases[number].format}: {cases[number].kind}"
            for number, right in found.items()
            if not right
        ]
        for engine, found in results.items()
    }
    return {"machine": tables.machine(), "versions": versions, "kinds": kinds, "same": _same(results), "wrong": wrong}


def _write(page: Path, sheet: tables.Sheet, lines: Sequence[str]) -> None:
    """Put the table, its date and the lines between the two comments of a page."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        sys.exit(f"{page} has no place for the table: {_BEGIN.strip()} and {_END.strip()}")
    table = tables.markdown(sheet).partition("\n\n")[2]
    dated = f"Right answers / cases, {datetime.date.today().isoformat()}:"
    block = "\n".join([dated, "", table, "", *(f"- {line}" for line in lines)])
    page.write_text(f"{before}{begin}\n{block}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
