"""`dovetail plan`: what `serve` would run, as a table, as JSON, or as another engine's command.

The table has the settings with their sources, the use of memory, warnings, notes and advice.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dovetail.cli.demo_models import demo_model
from dovetail.cli.files import print_json
from dovetail.cli.terminal import PROBLEM, labelled, visible
from dovetail.errors import PlanError
from dovetail.plan import Plan, Setting, resolve
from dovetail.plan.emit import emitted
from dovetail.plan.emit.command import comment, shown
from dovetail.plan.engines import NAMES
from dovetail.plan.options import BY_NAME
from dovetail.plan.outcome import Fit
from dovetail.plan.pairing import cannot_run
from dovetail.plan.parallel import GPUS, SIZES

_ENGINES = {"helm": "vllm"}  # form of --emit -> its engine, where the names differ
_STYLES = {"warning": PROBLEM, "note": "bold", "advice": "green"}
_GAP = "  "
Row = tuple[str, str, str]


def run(arguments: argparse.Namespace) -> None:
    # Without --engine, --emit plans for the engine whose command it prints.
    engine = _ENGINES.get(arguments.emit, arguments.emit)
    plan = resolved(arguments, engine=engine)
    if arguments.emit:
        print(_emitted(plan, arguments.emit), end="")
    elif arguments.json:
        print_json(plan.data())
    else:
        show(plan, Console(highlight=False), everything=arguments.all)


def resolved(arguments: argparse.Namespace, *, engine: str | None = None) -> Plan:
    """The plan for the arguments of `serve` or `plan`. `engine`: the engine if no layer of the plan sets one."""
    options = {name: value for name, value in vars(arguments).items() if name in BY_NAME}
    if arguments.config == "":
        raise PlanError("--config is empty: name a file, or leave it out")
    config = None if arguments.config is None else Path(arguments.config)
    model = arguments.model
    if arguments.demo is not None:
        if model is not None:
            raise PlanError(f"--demo {arguments.demo} is a model, and so is {model}: leave one of them out")
        # The embedded engine constrains calls, and its speculation can be switched for each request.
        model, engine = demo_model(arguments.demo), engine or "embedded"
    return resolve(model, options, config=config, recipe=arguments.recipe, engine=engine)


def _emitted(plan: Plan, form: str) -> str:
    """The plan as the command or values `form`, with its warnings as comments.

    Raises `PlanError` for a drafter that the engine cannot run.
    """
    reason = None if plan.drafter is None else cannot_run(plan.drafter, _ENGINES.get(form, form))
    if plan.drafter is not None and reason is not None:
        raise PlanError(f"--emit {form} with {plan.drafter.path}: {reason}. Another drafter, or --drafter none")
    warnings = [line for each in plan.advice_of("warning") for line in comment(f"warning: {each.message}")]
    return "".join(f"{line}\n" for line in warnings) + emitted(plan.command_settings, form)


def show(plan: Plan, console: Console, *, everything: bool) -> None:
    """Print the whole plan. Settings that are left to the engine are shown only with `everything`."""
    introduce(plan, console, everything=everything)
    if plan.fit is not None:
        console.print()
        labelled(console, _fit(plan, plan.fit))
    _print_advice(plan, console, "advice")


def introduce(plan: Plan, console: Console, *, everything: bool = False) -> None:
    """Print what runs in one line, the settings, warnings and notes."""
    console.print(Text(visible(headline(plan)), "bold"))
    console.print()
    _table(console, ("setting", "value", "from"), list(_settings(plan, everything=everything)))
    if plan.variables:
        console.print()
        rows = [_row(name, setting) for name, setting in plan.variables.items()]
        _table(console, ("environment", "value", "from"), rows)
    for level in ("warning", "note"):
        _print_advice(plan, console, level)


def headline(plan: Plan) -> str:
    """What runs in one line, such as `Kimi-K2.5 on vLLM, 8x B200 (tensor 8), eagle3 drafts 3 a step`."""
    engine = plan.value("engine")
    parts = [f"{plan.value('served_model_name')} on {NAMES.get(engine, engine)}"]
    sizes = {name: plan.value(name) or 1 for name in SIZES}
    words = {name: name.removesuffix("_parallel_size").replace("_", " ") for name in SIZES}
    degrees = [f"{words[name]} {size}" for name, size in sizes.items() if size > 1]
    if engine == "embedded":
        parts += [f"{math.prod(sizes[name] for name in GPUS)} ranks ({', '.join(degrees)})"] if degrees else []
    elif plan.gpus is not None or degrees:
        machine = str(plan.gpus) if plan.gpus else f"{math.prod(sizes[name] for name in GPUS)} GPUs"
        parts.append(f"{machine} ({', '.join(degrees)})" if degrees else machine)
    return ", ".join([*parts, *_drafting(plan)])


def _drafting(plan: Plan) -> Iterator[str]:
    """The method, how much it drafts, and the limits that the embedded engine keeps to."""
    tokens, method = plan.value("draft_tokens"), plan.value("method")
    if not tokens or not method:
        yield "nothing drafts"
        return
    measured = plan.value("gate") == "measured"
    most = plan.value("max_draft_tokens") or tokens
    yield f"{method} drafts up to {most} a step where it pays" if measured else f"{method} drafts {tokens} a step"
    if plan.value("engine") == "embedded":
        below, up_to = plan.value("speculate_below_context"), plan.value("speculate_up_to_batch")
        if below is not None:
            yield f"below {below:,} tokens of context"
        if up_to is not None:
            yield f"for up to {_number(up_to, 'sequence')} at once"


def _settings(plan: Plan, *, everything: bool) -> Iterator[Row]:
    for name, setting in plan.settings.items():
        if everything or (name != "env" and (setting.value is not None or setting.source != "default")):
            yield _row(name, setting)
    if plan.compute is not None:
        yield _row("compute", plan.compute)


def _row(name: str, setting: Setting[Any]) -> Row:
    return name, "none" if setting.value is None else visible(shown(setting.value)), visible(setting.source)


def _table(console: Console, head: Row, rows: list[Row]) -> None:
    """Print three columns. A value that is too long for its column has lines of its own."""
    names, sources = (max(cell_len(row[i]) for row in (head, *rows)) for i in (0, 2))
    width = max(console.width - names - sources - 2 * len(_GAP), len(head[1]))
    for i, (name, value, source) in enumerate((head, *rows)):
        fits = cell_len(value) <= width
        line = Text(set_cell_size(name, names) + _GAP).append(set_cell_size(value if fits else "", width), "cyan")
        console.print(line.append(_GAP + source, "dim"), style="bold" if i == 0 else "", soft_wrap=True)
        if not fits:
            labelled(console, [("", value)], text="cyan", indent=2)


def _print_advice(plan: Plan, console: Console, level: Literal["warning", "note", "advice"]) -> None:
    if plan.advice_of(level):
        console.print()
        labelled(console, ((level, each.message) for each in plan.advice_of(level)), label=_STYLES[level])


def _fit(plan: Plan, fit: Fit) -> Iterator[tuple[str, str]]:
    """The rows on the model and on what it takes of each GPU's memory."""
    target, drafter, each = plan.target, plan.drafter, fit.each
    assert target is not None
    active = f", {_count(fit.active)} active" if target.experts else ""
    experts = f", {target.experts.active} of {target.experts.routed} experts" if target.experts else ""
    stored = target.quantization.kind if target.quantization else target.dtype
    yield "target", f"{_count(fit.parameters)} parameters{active}: {target.attention.word}{experts}, {stored}"
    if drafter is not None:
        layers = f", {_number(drafter.layers, 'layer')}" if drafter.layers else ""
        attention = f" of {drafter.attention.word}" if drafter.attention and layers else ""
        where = {"speculators": ", in the speculators format", "inside the target": ", inside the target"}
        yield "drafter", f"{drafter.method}{layers}{attention}{where.get(drafter.config_format, '')}"
    estimated = ", estimated from its shape" if fit.weights_from == "shape" else ""
    more = f"; the drafter's {_bytes(fit.drafter_weights)}" if fit.drafter_weights else ""
    yield "weights", f"{_bytes(fit.weights)}{estimated}{more}"
    if each is not None:
        drafter_takes = f"the drafter {_bytes(each.drafter)}, " if each.drafter else ""
        yield (
            "memory",
            f"of each GPU's {_bytes(each.total)}, {_bytes(each.usable)} are used: weights take {_bytes(each.weights)}, "
            f"{drafter_takes}the engine about {_bytes(each.allowance)}, which leaves the KV cache "
            f"{_bytes(max(each.room, 0))}",
        )
    if fit.cache_per_token is not None:
        device = " on each GPU" if fit.gpus_used > 1 else ""
        room = ""
        if each is not None and each.tokens is not None and each.sequences is not None:
            room = f"; {each.tokens:,} tokens fit, {_number(each.sequences, 'sequence')} of {each.context:,}"
        yield "KV cache", f"{fit.cache_per_token:,.0f} bytes a token{device}{room}"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _count(parameters: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g}{letter}"
    return f"{parameters:,}"


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"
