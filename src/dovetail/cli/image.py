"""`dovetail image`: what goes into an image, a build of one, and a check of a built one."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from dovetail.errors import PlanError
from dovetail.image.build import Order, build
from dovetail.image.check import Trial, check
from dovetail.image.context import write_context
from dovetail.image.targets import BY_NAME, TARGETS, Target
from dovetail.plan import Plan, resolve


def run(arguments: argparse.Namespace) -> None:
    {"plan": _plan, "build": _build, "check": _check}[arguments.action](arguments)


def _plan(arguments: argparse.Namespace) -> None:
    targets = TARGETS if arguments.target is None else (BY_NAME[arguments.target],)
    plan = _drafting(arguments) if arguments.model is not None or arguments.drafter is not None else None
    if arguments.json:
        data = {"targets": targets, "drafter": None if plan is None else _described(plan)}
        print(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
        return
    console = Console(highlight=False)
    for target in targets:
        table = Table(title=f"{target.name}, on {target.base}", title_justify="left", box=None, show_header=False)
        for what, why in target.contents:
            table.add_row(what, why)
        console.print(table)
    if plan is not None:
        console.print(" ".join(f"{name} {value}" for name, value in _described(plan).items()))


def _build(arguments: argparse.Namespace) -> None:
    target = BY_NAME[arguments.target]
    plan = _needed_plan(arguments, target)
    source = Path(arguments.source)
    if arguments.context is not None:
        folder = Path(arguments.context)
        if folder.exists():
            raise PlanError(f"--context {folder} exists already: remove it, or name another folder")
        folder.mkdir(parents=True)
        write_context(target, source, folder, plan)
        return
    if arguments.base is None:
        raise PlanError(f"--base is missing: {target.name} needs {target.base}; name it as NAME@sha256:… or oci:FOLDER")
    output = None if arguments.output is None else Path(arguments.output)
    tag = arguments.tag or f"localhost/dovetail-{target.name}:latest"
    began = time.monotonic()
    build(
        Order(
            target=target,
            base=arguments.base,
            source=source,
            tag=tag,
            output=output,
            plan=plan,
            builder=arguments.builder,
        )
    )
    print(f"built {tag} in {time.monotonic() - began:.0f} s")


def _check(arguments: argparse.Namespace) -> None:
    model = None if arguments.model is None else Path(arguments.model)
    trial = None if arguments.no_start else Trial(tuple(arguments.serve), drafts=not arguments.no_drafts)
    report = check(arguments.image, model, trial)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    print(f"{report.kind} {report.digest}")
    print(f"user {report.user}, port {report.port}, {report.compressed / 1e6:.0f} MB compressed")
    if report.manifest is not None:
        made = report.manifest
        print(f"{made.drafter.name} fits {made.target.name}: {made.method}, {made.draft_tokens} draft tokens a step")
        print(f"{len(made.files)} files of the drafter as its manifest has them")
    if report.trial is not None:
        drafts = f"{report.trial['accepted']} of {report.trial['drafted']} drafts accepted"
        print(f"started in {report.trial['start_s']} s, answered a call, {drafts}")


def _needed_plan(arguments: argparse.Namespace, target: Target) -> Plan | None:
    if not target.drafter:
        if arguments.model is not None or arguments.drafter is not None:
            raise PlanError(f"--target {target.name} takes no model: weights are mounted where it runs")
        return None
    return _drafting(arguments)


def _drafting(arguments: argparse.Namespace) -> Plan:
    if arguments.model is None or arguments.drafter is None:
        raise PlanError("vllm-speculative needs MODEL, the target, and --drafter FOLDER")
    options = {
        name: getattr(arguments, name)
        for name in ("drafter", "method", "draft_tokens", "revision")
        if getattr(arguments, name) is not None
    }
    return resolve(arguments.model, options, recipe=arguments.recipe, engine="vllm")


def _described(plan: Plan) -> dict[str, object]:
    folder = plan.folders.get("drafter")
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) if folder else 0
    return {
        "target": plan.value("target"),
        "drafter": plan.value("drafter"),
        "method": plan.value("method"),
        "draft_tokens": plan.value("draft_tokens"),
        "bytes": size,
    }
