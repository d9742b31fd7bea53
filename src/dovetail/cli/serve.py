"""`dovetail serve`: builds tokenizer, format, engine and gateway as the plan says, and runs them."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from starlette.applications import Starlette

import dovetail
from dovetail.checkpoints.files import has_weights
from dovetail.cli import plan_report
from dovetail.cli.api_keys import read_key
from dovetail.cli.embedded_engine import LoadingBar, embedded_engine
from dovetail.cli.plan import resolved
from dovetail.cli.server import cancelled_by_signals, interruptible, listen, serve_app
from dovetail.cli.terminal import PROBLEM, curl, url_of
from dovetail.completion import Engine
from dovetail.errors import CheckpointError, PlanError
from dovetail.formats.base import Format
from dovetail.formats.history import listed_kinds
from dovetail.gateway import Settings, create_app
from dovetail.plan import Plan
from dovetail.plan.engines import missing_files
from dovetail.tokens import Tokenizer


def run(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False)
    with interruptible():
        plan = resolved(arguments)
        check_servable(plan)
        key = read_key(plan, "api_key_file")
        with listen(plan.value("host"), plan.value("port")) as listener:
            _introduce(plan, console)
            if plan.value("engine") == "embedded":
                loading = LoadingBar(console)
                app, engine = embedded_app(plan, key, loading)
                asyncio.run(serve_app(app, engine, listener, console, loading))
            else:
                asyncio.run(cancelled_by_signals(_serve_external(plan, key, listener, console)))


def check_servable(plan: Plan) -> None:
    """Raise `PlanError` or `CheckpointError` for a plan whose files are not all on this machine.

    vLLM downloads the weights of a model on the hub itself, and a server that already runs has loaded its own.
    """
    engine, target = plan.value("engine"), plan.value("target")
    for which in ("target", "drafter") if engine in ("embedded", "vllm") else ("target",):
        name = plan.value(which)
        if name is None:
            continue
        if which not in plan.folders:
            warnings = (each.message for each in plan.advice_of("warning") if each.setting == which)
            reason = next(warnings, "connect to the network, or give a folder")
            raise PlanError(f"{name} cannot be served, because its files could not be read: {reason}")
        missing = missing_files(name, plan.folders[which]) if engine == "embedded" else None
        if missing is not None:
            raise PlanError(missing)
    if engine == "vllm" and os.path.isabs(target) and not has_weights(plan.folders["target"]):
        raise CheckpointError(f"{target} is incomplete: it holds no weights")
    if plan.value("format") is None:
        raise PlanError(f"the format of {target} is not known: set it with --format")


def gateway_app(plan: Plan, key: str | None, engine: Engine, fmt: Format, tokenizer: Tokenizer) -> Starlette:
    """The gateway in front of `engine`, as the plan configures it. `key`: the API key of its clients."""
    settings = Settings(
        served_model_name=plan.value("served_model_name"),
        strict=plan.value("strict"),
        no_repair=listed_kinds(plan.value("no_repair")),
        retry_invalid=plan.value("retry_invalid") or 0,
        api_key=key,
    )
    return create_app(engine, fmt, tokenizer, settings)


def plan_format(plan: Plan) -> Format:
    """The plan's format. One that was detected is detected again, because it may be more than a name: a template."""
    detected = plan.settings["format"].source == "default"
    return dovetail.format(Path(plan.folders["target"]) if detected else plan.value("format"))


def embedded_app(
    plan: Plan, key: str | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[Starlette, Engine]:
    """The gateway in front of the embedded engine, and that engine. `progress`: see `embedded_engine`."""
    engine = embedded_engine(plan, progress)
    return gateway_app(plan, key, engine, plan_format(plan), dovetail.tokenizer(plan.folders["tokenizer"])), engine


def _serve_external(
    plan: Plan, key: str | None, listener: socket.socket, console: Console
) -> Coroutine[Any, Any, None]:
    """Serve with an engine in other processes. The engine is made at once, before the event loop runs."""
    # Imports an HTTP client, which the embedded engine does not need.
    from dovetail.cli.external_engines import check_drafting, external_engine
    from dovetail.cli.startup_progress import StartupProgress

    tokenizer, fmt, progress = (
        dovetail.tokenizer(plan.folders["tokenizer"]),
        plan_format(plan),
        StartupProgress(console),
    )
    engine = external_engine(plan, fmt, tokenizer, progress, console)
    app = gateway_app(plan, key, engine, fmt, tokenizer)
    return serve_app(app, engine, listener, console, progress, lambda: check_drafting(plan, engine, tokenizer, console))


def _introduce(plan: Plan, console: Console) -> None:
    """Print the plan, the server's URL, and a request to try."""
    plan_report.introduce(plan, console)
    console.print()
    host, port = plan.value("host"), plan.value("port")
    if plan.value("api_key_file") is None and not _is_loopback(host):
        warning = f"warning: {host} is open to other machines, and without --api-key-file clients need no key"
        console.print(Text(warning, PROBLEM))
    console.print(Text.assemble("serving ", (url_of(host, port), "bold green"), "   try:"))
    # Neither wrapped nor read as markup, so that it can be pasted.
    console.print(Text(curl(plan)), soft_wrap=True)
    console.print()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
