"""Dovetail's renderers beside chat templates (transformers, minijinja, our own Jinja) and vLLM's encoder.

CPU time of one rendering, without tokenizing: medians over rounds, between which the others have their turn, of medians
over renderings. What each one writes is compared first. Then the ids of conversations that grow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

import dovetail
from benchmarks import tables
from benchmarks.rendering import conversation, injection
from benchmarks.rendering.families import FAMILIES, Family, with_objects
from benchmarks.rendering.peers import PeerError, ask
from benchmarks.tables import Sheet

_ENGINES = {"native": "dovetail", "jinja": "dovetail", "transformers": "dovetail"}
_TITLES = {"native": "Dovetail", "jinja": "Dovetail's Jinja", "vllm": "vLLM's encoder"}
_IN_TEMPLATES = ("jinja", "transformers", "minijinja")
_SIZES = (100, 1_000, 5_000)
#: Headings of columns that hold words.
_WORDS = ("format", "written by", "renderer", "text", *injection.WORDS)


def main() -> None:
    """Measure and print."""
    options = _options()
    errors = Console(stderr=True)
    try:
        if not options.data.is_dir():
            if options.injection:
                raise PeerError(f"no {options.data}: --injection needs its tokenizers and templates")
            errors.print(f"no {options.data}, so only what needs no template and no tokenizer", highlight=False)
        results = injection.counted(options, errors) if options.injection else _measured(options, errors)
    except (PeerError, subprocess.SubprocessError) as error:
        errors.print(f"[red]{error}[/]", highlight=False)
        sys.exit(2)
    if options.json:
        print(json.dumps({"machine": tables.machine(), **results}, indent=2, ensure_ascii=False))
        return
    sheets = [injection.sheet(results)] if options.injection else _sheets(results)
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    notes = [f"{tables.machine()}; {versions}."]
    tables.show(sheets, notes, as_markdown=options.markdown, words=_WORDS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendering", description=__doc__)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.3, help="CPU seconds to spend on one figure in one round")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder with the others' environments")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with templates, tokenizers")
    parser.add_argument("--only", nargs="+", choices=["dovetail", "minijinja", "vllm"], help="environments to use")
    parser.add_argument("--injection", action="store_true", help="count the control tokens that a user can write")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    options.only = options.only or ["dovetail", "minijinja", "vllm"]
    return options


def _measured(options: argparse.Namespace, errors: Console) -> dict[str, Any]:
    jobs = [job for family in FAMILIES for job in _jobs(family, options)]
    growing = list(_growing(options))
    answers: list[list[dict[str, Any]]] = [[] for _ in jobs]
    columns = (TextColumn("{task.description:40}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        bar = progress.add_task("", total=options.rounds * len(jobs) + len(growing))
        for _ in range(options.rounds):
            for job, given in zip(jobs, answers, strict=True):
                progress.update(bar, description=f"{job['family']}: {job['renderer']}")
                given.append(ask(_engine(job), "worker", job, options.peers))
                progress.advance(bar)
        grown = []
        for job in growing:
            progress.update(bar, description=f"ids: {job['family']}, {job['messages']:,} messages")
            figures = ask("dovetail", "ids", job, options.peers)
            grown.append({name: job[name] for name in ("family", "by", "messages")} | figures)
            progress.advance(bar)
    cells = []
    for job, given in zip(jobs, answers, strict=True):
        seconds = statistics.median(answer["seconds"] for answer in given)
        cells.append({name: job[name] for name in ("family", "by", "renderer")} | given[0] | {"seconds": seconds})
    _compare(cells)
    packages = {"native": "dovetail", "jinja": "dovetail"}
    versions = {packages.get(cell["renderer"], cell["renderer"]): cell["version"] for cell in cells}
    return {
        "versions": versions,
        "messages": options.messages,
        "tools": options.tools,
        "render": [{name: value for name, value in cell.items() if name != "text"} for cell in cells],
        "ids": grown,
    }


def _engine(job: dict[str, Any]) -> str:
    return _ENGINES.get(job["renderer"], job["renderer"])


def _jobs(family: Family, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tools = conversation.tools(options.tools)
    messages = conversation.messages(options.messages)
    common = {"family": family.name, "bos": family.bos, "budget": options.budget}
    jobs = [
        common | {"renderer": encoder, "by": "code", "request": json.dumps([messages, tools])}
        for encoder in family.encoders
    ]
    for template in family.templates:
        path = options.data / template.path
        if path.is_file():
            shown = with_objects(messages) if template.objects else messages
            job = common | {
                "by": f"template: {template.title}",
                "template": path.read_text(encoding="utf-8"),
                "options": family.template_options(tools),
                "controls": sorted(dovetail.tokenizer(options.data / family.tokenizer).control),
                "request": json.dumps([shown, tools]),
            }
            jobs += [job | {"renderer": renderer} for renderer in _IN_TEMPLATES]
    return (job for job in jobs if _engine(job) in options.only)


def _growing(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for family in FAMILIES:
        tokenizer = options.data / family.tokenizer
        if not tokenizer.exists():
            continue
        common = {"family": family.name, "tokenizer": str(tokenizer), "rounds": options.rounds}
        for messages in _SIZES:
            yield common | {"by": "code", "template": None, "messages": messages}
        if family.name == "kimi_k25":
            template = (options.data / family.templates[0].path).read_text(encoding="utf-8")
            given = family.template_options(conversation.tools())
            for messages in _SIZES:
                yield common | {"by": "template", "template": template, "options": given, "messages": messages}


def _compare(cells: list[dict[str, Any]]) -> None:
    """Say which cells hold the text that Dovetail's own renderer writes. One template has one text."""
    texts: dict[tuple[str, str], str] = {}
    for cell in cells:
        own = texts.setdefault((cell["family"], "code"), cell["text"])
        cell["same"] = cell["text"] == own
        if cell["by"] != "code" and texts.setdefault((cell["family"], cell["by"]), cell["text"]) != cell["text"]:
            raise PeerError(f"{cell['renderer']} renders {cell['by']} of {cell['family']} differently from the others")


def _sheets(results: dict[str, Any]) -> list[Sheet]:
    own = {cell["family"]: cell["seconds"] for cell in results["render"] if cell["renderer"] == "native"}
    rows = []
    for cell in results["render"]:
        ratio = cell["seconds"] / own[cell["family"]] if cell["family"] in own else None
        title = _TITLES.get(cell["renderer"], cell["renderer"])
        row = [cell["family"], cell["by"], title, f"{cell['seconds'] * 1e3:,.2f}"]
        rows.append([*row, "–" if ratio is None else f"{ratio:,.1f}x", "equal" if cell["same"] else "differs"])
    title = f"Rendering {results['messages']} messages and {results['tools']} tools"
    sheets: list[Sheet] = [(title, ["format", "written by", "renderer", "ms", "to Dovetail", "text"], rows)]
    rows = []
    for cell in results["ids"]:
        row = [cell["family"], cell["by"], f"{cell['messages']:,}", f"{cell['characters']:,.0f}", f"{cell['ids']:,.0f}"]
        row += [f"{cell['first'] * 1e3:,.2f}", f"{cell['next'] * 1e3:,.2f}", f"{cell['tokenized']:,.0f}"]
        rows.append([*row, f"{cell['tokenized'] / cell['characters']:.2%}"])
    headings = [
        "format",
        "written by",
        "messages",
        "characters",
        "ids",
        "first ms",
        "next turn ms",
        "tokenized then",
        "share",
    ]
    if rows:
        sheets.append(("Ids of a conversation that grows by two messages", headings, rows))
    return sheets


if __name__ == "__main__":
    main()
