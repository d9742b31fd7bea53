"""`dovetail serve`: builds tokenizer, format, engine and gateway as the plan says, and runs them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import ipaddress
import math
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text
from starlette.applications import Starlette

import dovetail
from dovetail.checkpoints import fixed_sampling
from dovetail.checkpoints.files import has_weights
from dovetail.cli.embedded_engine import LoadingBar, embedded_engine
from dovetail.cli.main import BEGAN
from dovetail.cli.plan import introduce, resolved
from dovetail.cli.terminal import PROBLEM, address_of, curl
from dovetail.completion import Engine
from dovetail.errors import CheckpointError, PlanError
from dovetail.formats.base import Format
from dovetail.formats.prompts.history import listed_kinds
from dovetail.formats.registry import served_format
from dovetail.gateway import Settings, create_app
from dovetail.gateway.app import app_of, memory_of
from dovetail.gateway.limits.queue import QueueLimits
from dovetail.gateway.models import Models
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.observe.recording_folder import RecordingLimits, RecordingOptions, When
from dovetail.gateway.settings import MEMORY_LIMITS
from dovetail.gateway.store.interface import Store, StoreLimits
from dovetail.gateway.turn.tools import shows_tools
from dovetail.inspect.routes import inspect_routes
from dovetail.plan import Plan
from dovetail.plan.engines import NAMES, missing_files
from dovetail.plan.models_file import ModelsFile, read_models
from dovetail.plan.options import BY_NAME
from dovetail.plan.resolve import resolve_server
from dovetail.server.api_keys import CLIENT_KEY, NO_KEYS, ClientKeys, client_keys
from dovetail.server.connections import ConnectionLimits
from dovetail.server.logs import logging_in_background, logs_json
from dovetail.server.record_key import record_key
from dovetail.server.server import (
    ServerOptions,
    cancelled_by_signals,
    interruptible,
    listening,
    listening_for_metrics,
    serve_app,
)
from dovetail.server.telemetry import telemetry
from dovetail.server.tls import tls_context
from dovetail.tokens import Tokenizer

if TYPE_CHECKING:
    from dovetail.cli.several_models import ServedModels

#: A thread that computes lets others run after so long (Python: 5 ms). A request goes from thread to thread many times,
#: and an engine in this process lets go of the interpreter in every operation: each time both may wait for threads that
#: prepare long requests. Three threads that compute took no more CPU time with this than with 5 ms.
_SWITCH_S = 0.0001
_SECONDS_OF_A_DAY = 24 * 3600


def run(arguments: argparse.Namespace) -> None:
    sys.setswitchinterval(_SWITCH_S)
    with interruptible(), contextlib.ExitStack() as stack:
        file = None if arguments.models is None else models_file(arguments)
        plan = resolved(arguments) if file is None else file.server
        console = Console(highlight=False, stderr=logs_json(plan))
        stack.enter_context(logging_in_background(json=logs_json(plan)))
        if file is None:
            check_servable(plan)
        keys = client_keys(plan)
        if keys.store is not None:
            stack.callback(keys.store.close)
        options = server_options(plan)
        with listening(plan) as listener, listening_for_metrics(plan) as metrics:
            options = msgspec.structs.replace(options, metrics=metrics)
            if file is not None:
                asyncio.run(cancelled_by_signals(_serve_several(file, keys, listener, console, options)))
                return
            introduce(plan, console)
            console.print()
            _announce(plan, keys, console)
            if plan.value("engine") == "embedded":
                loading = LoadingBar(console)
                app, engine = embedded_app(plan, keys, loading)
                serving = serve_app(
                    app, engine, listener, console, loading, reloads=keys.reloads, options=options, began=BEGAN
                )
                asyncio.run(serving)
            else:
                asyncio.run(cancelled_by_signals(_serve_external(plan, keys, listener, console, options)))


def models_file(arguments: argparse.Namespace) -> ModelsFile:
    """The file of models that the arguments name, with the plan of the server. Raises `PlanError`."""
    if arguments.model is not None or arguments.demo is not None or arguments.recipe is not None:
        raise PlanError("--models has the models: leave MODEL, --demo and --recipe out, or put them into its file")
    options = {name: value for name, value in vars(arguments).items() if name in BY_NAME}
    config = None if arguments.config is None else Path(arguments.config)
    server = resolve_server(options, config=config)
    file = Path(arguments.models)
    return ModelsFile(file, read_models(file), server, options, config)


def several_app(file: ModelsFile, keys: ClientKeys, console: Console) -> tuple[Starlette, ServedModels]:
    """The gateway in front of the models of `file`, and what starts and stops them."""
    from dovetail.cli.several_models import ServedModels

    names = ", ".join(entry.name for entry in file.entries)
    settings = Settings(served_model_name=names, **server_fields(file.server, keys))
    memory = memory_of(settings)
    models = Models(Metrics(tool_names=settings.metrics_tools))
    served = ServedModels(file, models, settings, memory, console)
    return app_of(models, settings, memory, telemetry(file.server), inspect_routes(settings, None)), served


def _serve_several(
    file: ModelsFile, keys: ClientKeys, listener: socket.socket, console: Console, options: ServerOptions
) -> Coroutine[Any, Any, None]:
    """Serve the models of `file`, which start while the server answers."""
    app, served = several_app(file, keys, console)
    _announce(file.server, keys, console)
    reloads = [*keys.reloads, served.reload]
    return serve_app(app, served, listener, console, served, reloads=reloads, options=options, began=BEGAN)


def check_servable(plan: Plan) -> None:
    """Raise `PlanError` or `CheckpointError` for a plan whose files are not all on this machine, or that contradicts
    itself.

    vLLM downloads the weights of a model on the hub itself, and a server that already runs has loaded its own.
    """
    engine, target = plan.value("engine"), plan.value("target")
    for which in ("target", "drafter") if engine in ("embedded", "vllm", "llama.cpp") else ("target",):
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
    _aliases(plan)
    if plan.value("format") is None:
        raise PlanError(f"the format of {target} is not known: set it with --format")


def gateway_app(plan: Plan, keys: ClientKeys, engine: Engine, fmt: Format, tokenizer: Tokenizer) -> Starlette:
    """The gateway in front of `engine`, as the plan configures it."""
    settings = Settings(**model_fields(plan), **server_fields(plan, keys))
    return create_app(engine, fmt, tokenizer, settings, telemetry(plan), inspect_routes(settings, tokenizer))


def model_fields(plan: Plan) -> dict[str, Any]:
    """The plan's settings of the gateway that are the model's."""
    return {
        "served_model_name": plan.value("served_model_name"),
        "aliases": _aliases(plan),
        "strict": plan.value("strict"),
        "no_repair": listed_kinds(plan.value("no_repair")),
        "on_malformed_call": plan.value("on_malformed_call"),
        "allow_silent": bool(plan.value("allow_silent")),
        "strict_max_tokens": bool(plan.value("strict_max_tokens")),
        "loops": plan.value("loops") or "report",
        "reasoning_budget": plan.value("reasoning_budget"),
        "fixed_sampling": _fixed_sampling(plan),
        "gate_override": plan.value("gate_override") is not False,
        "queue": queue_limits(plan),
    }


def server_fields(plan: Plan, keys: ClientKeys) -> dict[str, Any]:
    """The plan's settings of the gateway that are the server's."""
    return dict(
        api_key=keys.single,
        keys=keys.named,
        record_key=record_key(plan),
        allow_origins=tuple(filter(None, (plan.value("allow_origin") or "").split(","))),
        image_hosts=tuple(filter(None, (plan.value("image_urls") or "").split(","))),
        hosts=None if keys.needed else _own_names(plan),
        **_request_limits(plan),
        salt_cache=plan.value("cache_salt") != "off",
        metrics_tools=bool(plan.value("metrics_tools")),
        metrics_apart=plan.value("metrics_port") is not None,
        response_store=stored_at(plan, "response_store", "responses.db", keys.store),
        response_limits=file_limits(plan, "response_store", StoreLimits()),
        memory=memory_place(plan, keys.store),
        memory_limits=file_limits(plan, "memory_store", MEMORY_LIMITS),
        recordings=recording_options(plan),
    )


def _aliases(plan: Plan) -> tuple[str, ...]:
    """The further names of the model. Raises `PlanError` for an alias of another one."""
    served = plan.value("served_model_name")
    pairs = [alias.rpartition("=") for alias in (plan.value("alias") or "").split(",") if alias]
    for name, _, target in pairs:
        if target != served:
            raise PlanError(f"alias is {name}={target}, but the served model is {served}: see --served-model-name")
    return (*(name for name, _, _ in pairs), *(["*"] if plan.value("accept_any_model") else []))


def _request_limits(plan: Plan) -> dict[str, int]:
    """The plan's limits of requests. What it does not set has the gateway's default."""
    limits = {"body_memory_bytes": "body_memory", "max_messages": "max_messages"}
    return {field: value for field, name in limits.items() if (value := plan.value(name)) is not None}


def _fixed_sampling(plan: Plan) -> fixed_sampling.FixedSampling | None:
    """The values that requests may have in each sampling field; None: any."""
    text = plan.value("fixed_sampling")
    if text is None or text == "none":
        return None
    return fixed_sampling.of_model(Path(plan.folders["target"])) if text == "model" else fixed_sampling.parse(text)


def queue_limits(plan: Plan) -> QueueLimits:
    """The plan's limits of the queue. What it does not set has the gateway's default.

    A few more answers run than the engine computes at a time, so that it never waits for the next one.
    """
    limits = {"waiting": "max_waiting", "waiting_tokens": "max_waiting_tokens", "seconds": "queue_timeout"}
    options = {field: value for field, name in limits.items() if (value := plan.value(name)) is not None}
    batch = plan.value("max_batch")
    return QueueLimits(running=None if batch is None else batch + max(2, batch // 4), **options)


def stored_at(plan: Plan, option: str, name: str, shared: Store | None = None) -> Path | Store | None:
    """Where entries are kept; None to keep none. Raises `PlanError` for a file beside a `shared` store.

    That is the `shared` store, the file that `option` names, or the file `name` in the user's cache folder.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    setting = plan.settings[option]
    if setting.value is not None or setting.source != "default":
        if shared is not None and setting.value is not None:
            raise PlanError(f"{option} is the file {setting.value}, but there is a store: leave one of them out")
        return None if setting.value is None else Path(setting.value)
    if shared is not None:
        return shared
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "dovetail" / name
    except RuntimeError:  # no home folder
        return None


def memory_place(plan: Plan, shared: Store | None = None) -> Path | Store | None:
    """Where answers are kept; None to keep none."""
    return None if plan.value("memory") is False else stored_at(plan, "memory_store", "memory.db", shared)


def file_limits(plan: Plan, option: str, default: StoreLimits) -> StoreLimits:
    """The plan's limits of the store of `option`. What it does not set has the `default`."""
    limits = {"entries": f"{option}_count", "size": f"{option}_size", "age": f"{option}_age"}
    values = {field: value for field, name in limits.items() if (value := plan.value(name)) is not None}
    if "age" in values:
        values["age"] = math.ceil(values["age"] * _SECONDS_OF_A_DAY)
    return msgspec.structs.replace(default, **values)


def recording_options(plan: Plan) -> RecordingOptions | None:
    """Where the plan records requests; None if it does not. Raises `PlanError` for a folder that cannot be made."""
    if plan.value("record") is None:
        return None
    folder = Path(plan.value("record"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"record is {folder}, which cannot be a folder: {error.strerror}") from error
    limits = {"recordings": "record_count", "size": "record_size"}
    options = {field: value for field, name in limits.items() if (value := plan.value(name)) is not None}
    days = plan.value("record_age")
    age = {} if days is None else {"age": days * _SECONDS_OF_A_DAY}
    when: When = plan.value("record_when") or "always"
    redact, pictures = (bool(plan.value(name)) for name in ("record_redact", "record_pictures"))
    if redact and pictures:
        raise PlanError("record_pictures keeps what clients sent, and record_redact does not: leave one of them out")
    return RecordingOptions(folder, RecordingLimits(**options, **age), redact, when, pictures)


def server_options(plan: Plan) -> ServerOptions:
    """The plan's limits of connections, and its grace period. What it does not set has the server's default."""
    limits = {
        "connections": "max_connections",
        "header_s": "header_timeout",
        "body_s": "body_timeout",
        "send_s": "send_timeout",
        "keep_alive_s": "keep_alive_timeout",
    }
    options = {field: value for field, name in limits.items() if (value := plan.value(name)) is not None}
    grace = {} if plan.value("grace") is None else {"grace_s": plan.value("grace")}
    tls = tls_context(plan.value("ssl_certfile"), plan.value("ssl_keyfile"))
    return ServerOptions(connections=ConnectionLimits(**options), tls=tls, **grace)


def _own_names(plan: Plan) -> frozenset[str] | None:
    """The names by which clients may call a server on loopback; None: any, because others have to reach it."""
    host = plan.value("host")
    if plan.value("uds") is not None or not is_loopback(host):  # no page in a browser reaches a Unix socket
        return None
    more = (plan.value("allow_host") or "").lower().split(",")
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower(), *filter(None, map(str.strip, more))})


def plan_format(plan: Plan) -> Format:
    """The plan's format. One that was detected is detected again, because it may be more than a name: a template."""
    folder, setting = Path(plan.folders["target"]), plan.settings["format"]
    if setting.source != "default":
        return served_format(setting.value, folder)
    return dovetail.format(folder, generic_tools=plan.value("generic_tools") is not False)


def embedded_app(
    plan: Plan, keys: ClientKeys = NO_KEYS, progress: Callable[[int, int], None] | None = None
) -> tuple[Starlette, Engine]:
    """The gateway in front of the embedded engine, and that engine. `progress`: see `embedded_engine`."""
    engine = embedded_engine(plan, progress)
    return gateway_app(plan, keys, engine, plan_format(plan), dovetail.tokenizer(plan.folders["tokenizer"])), engine


def _serve_external(
    plan: Plan, keys: ClientKeys, listener: socket.socket, console: Console, options: ServerOptions
) -> Coroutine[Any, Any, None]:
    """Serve with an engine in other processes. The engine is made at once, before the event loop runs."""
    # Imports an HTTP client, which the embedded engine does not need.
    from dovetail.cli.external_engines import check_engine, external_engine
    from dovetail.cli.startup_progress import StartupProgress

    tokenizer, fmt, progress = (
        dovetail.tokenizer(plan.folders["tokenizer"]),
        plan_format(plan),
        StartupProgress(console, NAMES.get(plan.value("engine"), "the engine")),
    )
    engine = external_engine(plan, fmt, tokenizer, progress, console)
    app = gateway_app(plan, keys, engine, fmt, tokenizer)
    check = functools.partial(check_engine, plan, engine, fmt, tokenizer, console)
    return serve_app(
        app, engine, listener, console, progress, check, reloads=keys.reloads, options=options, began=BEGAN
    )


def _announce(plan: Plan, keys: ClientKeys, console: Console) -> None:
    """Print the server's URL, and a request to try if the plan has a model."""
    host = plan.value("host")
    if not keys.needed and plan.value("uds") is None and not is_loopback(host):
        warning = (
            f"warning: {host} is open to other machines, and without --api-key-file, --api-keys or {CLIENT_KEY} "
            "clients need no key"
        )
        if plan.value("record") is not None:
            warning += ": everybody there can read the recordings of all prompts and answers"
        console.print(Text(warning, PROBLEM))
    if keys.store is not None:
        console.print(Text(f"state shared in {keys.store.address}"))
        if plan.value("record_key_file") is None:
            warning = (
                "warning: without --record-key-file, other gateways neither read records nor find what was remembered"
            )
            console.print(Text(warning, PROBLEM))
    if plan.value("record") is not None and plan.value("uds") is None:  # no browser reaches a Unix socket
        console.print(Text.assemble("recordings at ", (f"{address_of(plan)}/inspect", "bold green")))
    several = plan.value("target") is None
    console.print(Text.assemble("serving ", (address_of(plan), "bold green"), "" if several else "   try:"))
    if several:
        return
    # Neither wrapped nor read as markup, so that it can be pasted.
    tools = shows_tools(plan_format(plan))  # without them in its prompts, the server refuses tools
    console.print(Text(curl(plan, tools=tools, key_variable=CLIENT_KEY if keys.needed else None)), soft_wrap=True)
    console.print()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
