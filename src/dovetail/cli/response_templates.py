"""`dovetail formats --of CHECKPOINT --check|--write response_template`: a response template proved, or written."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from dovetail.cli.files import print_json
from dovetail.cli.terminal import labelled
from dovetail.cli.transformers_parser import TransformersParser
from dovetail.errors import CheckpointError, PlanError
from dovetail.formats.base import Format
from dovetail.formats.derived.detection import own_template
from dovetail.formats.registry import FAMILIES
from dovetail.formats.response_templates.anchors import backtracking
from dovetail.formats.response_templates.roundtrip import Result, roundtrip
from dovetail.formats.response_templates.writing import Inexpressible, written

PROBLEMS = 1  # the exit code if an answer reads otherwise


def check(arguments: argparse.Namespace) -> int:
    """Whether the checkpoint's own response template reads what its chat template shows."""
    folder = Path(arguments.of)
    fmt, spec = own_template(folder, FAMILIES) if folder.is_dir() else (None, None)
    if fmt is None or spec is None:
        raise CheckpointError(f"{folder} must be a folder with a chat template, and a response_template to check")
    about: dict[str, Any] = {"response_template": "response_template in tokenizer_config.json"}
    reason = backtracking(spec)
    if reason:
        about |= {"equal": False, "reason": reason}
    else:
        with TransformersParser() as parse:
            about |= _reported(roundtrip(fmt, functools.partial(parse, spec)))
    about |= {"read_by": fmt.family_name if fmt.reads_calls else "", "not_used_because": fmt.refusal}
    if arguments.json:
        print_json(about)
    else:
        _show(Console(highlight=False), about)
    return 0 if about["equal"] else PROBLEMS


def write(arguments: argparse.Namespace, fmt: Format) -> int:
    """Print a response template for `fmt`, and on standard error what it does not read."""
    folder = Path(arguments.of)
    own = own_template(folder, FAMILIES)[0] if folder.is_dir() else None
    try:
        spec, result = _best(own or fmt)
    except Inexpressible as error:
        raise PlanError(f"{arguments.of}: no response_template reads its calls: {error}") from None
    about = {} if result is None else _reported(result)
    if arguments.json:
        print_json({"response_template": spec} | about)
    else:
        print(json.dumps(spec, ensure_ascii=False, indent=2))
        if result is None:
            about = {"reason": "not checked: transformers 5.13 or later is not installed"}
        _show(Console(highlight=False, stderr=True), about)
    return 0 if about.get("equal", True) else PROBLEMS


def _best(fmt: Format) -> tuple[dict[str, Any], Result | None]:
    """The response template that reads the most, and what it reads; None if nothing can check that."""
    specs = [*written(fmt)]
    try:
        with TransformersParser() as parse:
            best, result = specs[0], None
            for spec in specs:
                tried = roundtrip(fmt, functools.partial(parse, spec))
                if result is None or tried.differing < result.differing:
                    best, result = spec, tried
                if not tried.differing:
                    break
            return best, result
    except PlanError:
        return specs[0], None


def _reported(result: Result) -> dict[str, Any]:
    about: dict[str, Any] = {
        "answers": result.messages,
        "with_calls": result.calling,
        "differing": result.differing,
        "equal": not result.differing,
    }
    if result.difference is not None:
        about["difference"] = result.difference._asdict()
    return about


def _show(console: Console, about: dict[str, Any]) -> None:
    rows = []
    if "answers" in about:
        differ = f"{about['differing']} read otherwise" if about["differing"] else "all read back"
        calls = f"{about['with_calls']} with calls" if about["with_calls"] else "none has calls: prompts show none"
        rows.append(("checked", f"{about['answers']} answers in prompts ({calls}), by transformers: {differ}"))
    if about.get("reason"):
        rows.append(("refused" if "equal" in about else "checked", about["reason"]))
    if difference := about.get("difference"):
        rows += [
            ("part", difference["part"]),
            ("sent", json.dumps(difference["sent"], ensure_ascii=False)),
            ("read", json.dumps(difference["read"], ensure_ascii=False, default=str)),
            ("answer", repr(difference["text"])),
        ]
    if about.get("read_by"):
        why = f"; the response_template is not used, because {about['not_used_because']}"
        rows.append(("Dovetail", f"reads calls as {about['read_by']}" + (why if about["not_used_because"] else "")))
    labelled(console, rows)
