"""`dovetail verify`: is an endpoint the model that it says it is, and if not, which step failed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import dovetail
from dovetail.cli.files import endpoint_key, print_json, read_json, read_text
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.transport import HttpTransport, base_of
from dovetail.conversation import check_tools
from dovetail.errors import InvalidRequest
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Header, Journal, digest
from dovetail.verify.language import Language
from dovetail.verify.outcome import STEPS, Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.report import html, junit, results, show
from dovetail.verify.report.result import exit_code
from dovetail.verify.runner import Plan, announced
from dovetail.verify.runner import run as run_suites
from dovetail.verify.suites import SUITES, Calls, Schema, Silent, Speculation, Suite
from dovetail.verify.suites.base import Case
from dovetail.verify.suites.bfcl import CATEGORIES, read_bfcl
from dovetail.verify.suites.calls import Reference
from dovetail.verify.suites.recorded import read_results, read_samples

#: The environment variables with the keys of the first and the second URL. A key is never sent to the other one.
KEY_VARIABLES = ("OPENAI_API_KEY", "OPENAI_API_KEY_2")
REFERENCE_KEY_VARIABLE = "OPENAI_API_KEY_REFERENCE"
UNDRAFTED_KEY_VARIABLES = ("OPENAI_API_KEY_UNDRAFTED", "OPENAI_API_KEY_UNDRAFTED_2")


def run(arguments: argparse.Namespace) -> int:
    urls = [base_of(url) for url in (arguments.url, arguments.url2) if url is not None]
    fail_on = _words(arguments.fail_on, (*SUITES, *STEPS, "any", "none"), "--fail-on")
    required = _words(arguments.suite, SUITES, "--suite")
    language = _language(arguments)
    key_files = (arguments.api_key_file, arguments.api_key_file_2)
    names = _model_names(arguments)
    endpoints = [_endpoint(url, names[i], key_files[i], KEY_VARIABLES[i], arguments) for i, url in enumerate(urls)]
    reference = _reference(arguments)
    undrafted = _undrafted(endpoints, arguments)
    suites = _suites(required, reference, undrafted, arguments)
    keep = None if arguments.keep is None else Path(arguments.keep)
    for file in (arguments.html, arguments.junit):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise InvalidRequest(f"the folder of {file} is missing")  # before the run, which may take hours
    beside = arguments.reference, arguments.undrafted, arguments.undrafted_2
    header = Header(
        tuple(urls),
        names[: len(urls)],
        digest(suites, (beside, arguments.model, arguments.format, arguments.max_tokens)),
    )
    journal = Journal(keep and keep / "journal.jsonl", header)
    bundles = Bundles(keep and keep / "failures")
    plan = Plan(suites, arguments.runs, arguments.concurrency, undrafted)
    companions = [*undrafted.values(), *([reference.companion] if reference and reference.companion else [])]
    for line in announced(plan, len(urls)):
        print(line, file=sys.stderr)
    outcomes = asyncio.run(_run(endpoints, companions, plan, language, journal, bundles))
    return _report(arguments, suites, outcomes, tuple(urls), fail_on, required)


async def _run(
    endpoints: Sequence[Endpoint],
    companions: Sequence[Companion],
    plan: Plan,
    language: Language,
    journal: Journal,
    bundles: Bundles,
) -> list[Outcome]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("cases", total=None)
            return await run_suites(
                endpoints,
                plan,
                language,
                journal=journal,
                bundles=bundles,
                progress=lambda done, of: bar.update(task, completed=done, total=of),
            )
    finally:
        for endpoint in endpoints:
            await endpoint.close()
        for companion in companions:
            await companion.close()


def _report(
    arguments: argparse.Namespace,
    suites: Sequence[Suite],
    outcomes: Sequence[Outcome],
    urls: tuple[str, ...],
    fail_on: Sequence[str],
    required: Sequence[str],
) -> int:
    result = results(suites, outcomes, len(urls))
    if arguments.json:
        print_json(result)
    else:
        show(result, urls, Console(highlight=False))
    if arguments.html is not None:
        Path(arguments.html).write_bytes(html(result, urls).encode(errors="replace"))
    if arguments.junit is not None:
        Path(arguments.junit).write_bytes(junit(outcomes, urls).encode(errors="replace"))
    return exit_code(result, outcomes, fail_on=fail_on, required=required)


def _words(listed: str, known: Sequence[str] | dict[str, type[Suite]], option: str) -> list[str]:
    """The words of a list with commas. Raises `InvalidRequest` for an unknown one."""
    words = [word.strip() for word in listed.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise InvalidRequest(f"{option} knows no {word!r:.80}; it knows {', '.join(known)}")
    return words


def _language(arguments: argparse.Namespace) -> Language:
    if arguments.model is not None:
        return Language(dovetail.format(arguments.model), dovetail.tokenizer(arguments.model))
    return Language(None if arguments.format is None else dovetail.format(arguments.format))


def _suites(
    names: Sequence[str],
    reference: Reference | None,
    undrafted: Mapping[Endpoint, Companion],
    arguments: argparse.Namespace,
) -> list[Suite]:
    """The suites with these names, or all of them, with the cases of the user's files."""
    suites = [suite for name, suite in SUITES.items() if not names or name in names]
    made: dict[type[Suite], Callable[[], Suite]] = {
        Schema: lambda: Schema(_tools(arguments.tools), _schemas(arguments.schemas)),
        Speculation: lambda: Speculation(undrafted),
        Silent: lambda: Silent(arguments.conversations, arguments.turns),
        Calls: lambda: Calls(arguments.samples and read_samples(arguments.samples), reference, _bfcl(arguments)),
    }
    return [made.get(suite, suite)() for suite in suites]


def _bfcl(arguments: argparse.Namespace) -> list[Case]:
    if arguments.bfcl is None:
        return []
    named = arguments.bfcl_categories
    return read_bfcl(arguments.bfcl, CATEGORIES if named is None else named.split(","))


def _tools(path: str | None) -> list[Any]:
    """The tools in a file, which holds a list of them or the body of a request. Raises `InvalidRequest`."""
    if path is None:
        return []
    content = read_json(path)
    tools = content.get("tools") if isinstance(content, dict) else content
    check_tools(tools)
    if not tools:
        raise InvalidRequest(f"{path} has no tools")
    return list(tools)


def _schemas(folder: str | None) -> dict[str, Any]:
    """The schemas below a folder: one in each line of a `valid.jsonl`, or one in a `.json` file."""
    if folder is None:
        return {}
    schemas: dict[str, Any] = {}
    for file in sorted(Path(folder).rglob("valid.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            schemas[f"{file.parent.name}/{number}"] = _schema(line, f"{file}, line {number}")
    for file in sorted(Path(folder).rglob("*.json")):
        schemas[file.stem] = _schema(read_text(str(file)), str(file))
    if not schemas:
        raise InvalidRequest(f"{folder} has no valid.jsonl and no .json file below it")
    return schemas


def _schema(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{where} is not JSON") from None


def _reference(arguments: argparse.Namespace) -> Reference | None:
    """One or two recorded runs, or an endpoint with a key of its own."""
    named = arguments.reference
    if not named:
        return None
    urls = [where for where in named if where.startswith(("http://", "https://"))]
    if len(named) > 2 or (urls and len(named) > 1):
        raise InvalidRequest("--reference takes one URL, which is asked twice, or one or two files")
    if not urls:
        return Reference(recorded=read_results(named))
    name, key_file = arguments.reference_model_name or arguments.model_name, arguments.reference_key_file
    return Reference(_endpoint(base_of(urls[0]), name, key_file, REFERENCE_KEY_VARIABLE, arguments))


def _undrafted(endpoints: Sequence[Endpoint], arguments: argparse.Namespace) -> dict[Endpoint, Companion]:
    """The endpoints without drafter, by the endpoint that they stand beside."""
    if arguments.undrafted_2 is not None and len(endpoints) == 1:
        raise InvalidRequest("--undrafted-2 is for URL2, which is not given: use --undrafted")
    named = (
        (arguments.undrafted, arguments.undrafted_key_file),
        (arguments.undrafted_2, arguments.undrafted_key_file_2),
    )
    return {
        endpoint: Companion(
            _endpoint(base_of(url), endpoint.model, key_file, variable, arguments), "endpoint without drafter"
        )
        for endpoint, (url, key_file), variable in zip(endpoints, named, UNDRAFTED_KEY_VARIABLES, strict=False)
        if url is not None
    }


def _model_names(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    if arguments.model_name_2 is not None and arguments.url2 is None:
        raise InvalidRequest("--model-name-2 is for URL2, which is not given: use --model-name")
    return arguments.model_name, arguments.model_name_2 or arguments.model_name


def _endpoint(
    url: str, model: str | None, key_file: str | None, variable: str, arguments: argparse.Namespace
) -> Endpoint:
    limits = Limits(arguments.max_requests, arguments.max_wait, arguments.max_tokens)
    transport = HttpTransport(url, endpoint_key(key_file, variable), arguments.timeout)
    return Endpoint(transport, url, model=model, limits=limits)
