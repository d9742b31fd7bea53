"""`dovetail serve`: puts tokenizer, format, engine and gateway together as the plan says, and runs them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.text import Text
from starlette.applications import Starlette

import dovetail
from dovetail.cli.api_keys import key_file
from dovetail.cli.plan import resolved
from dovetail.cli.plan_report import introduce
from dovetail.cli.terminal import PROBLEM, address, curl
from dovetail.completion import Engine
from dovetail.engine.settings import INSIDE, LOOKUP, EngineSettings
from dovetail.errors import CheckpointError, EngineError, PlanError
from dovetail.formats.history import listed_kinds
from dovetail.gateway import Settings, create_app
from dovetail.plan import Plan
from dovetail.plan.checkpoint import has_weights
from dovetail.plan.engines import not_here
from dovetail.plan.methods import LOOKUPS
from dovetail.tokens import Tokenizer

_GRACE_S = 10  # how long running answers may take to end once the server was told to stop
_LAST_WORD_S = 3  # how long their clients may then take to be told that they did not
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False)
    with _interruptible():
        plan = resolved(arguments)
        _refuse_absent(plan)
        key = key_file(plan, "api_key_file")
        with _listen(plan.value("host"), plan.value("port")) as listener:
            _introduce(plan, console)
            if plan.value("engine") == "embedded":
                loading = _Loading(console)
                asyncio.run(_serve(*_application(plan, key, loading), listener, console, loading))
            else:
                asyncio.run(_stoppable(_serve_behind(plan, key, listener, console)))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Until the server has its own say, Ctrl-C ends the process at once: a thread that loads cannot be told to stop."""
    before = signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the cursor, which the bar had hidden
    os._exit(128 + number)


def _refuse_absent(plan: Plan) -> None:
    """Raise `PlanError` or `CheckpointError` for a plan that can be made and not be served: too little of it is here.

    Of a model on the hub vLLM fetches the weights itself; what a server that runs has loaded is its own affair.
    """
    engine, target = plan.value("engine"), plan.value("target")
    for which in ("target", "drafter") if engine in ("embedded", "vllm") else ("target",):
        name = plan.value(which)
        if name is None:
            continue
        if which not in plan.folders:
            told = (each.message for each in plan.told("warning") if each.setting == which)
            why = next(told, "go on line, or give a folder")
            raise PlanError(f"{name} could not be looked at, and so cannot be served: {why}")
        missing = not_here(name, plan.folders[which]) if engine == "embedded" else None
        if missing is not None:
            raise PlanError(missing)
    if engine == "vllm" and os.path.isabs(target) and not has_weights(plan.folders["target"]):
        raise CheckpointError(f"{target} is half a checkpoint: it holds no weights")
    if plan.value("format") is None:
        raise PlanError(f"the language of {target} is not known: say --format")


class _Loading:
    """A bar that shows how much of the weights is read, on a terminal only. Called by whoever reads them."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("loading"), BarColumn(), DownloadColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("loading", total=None)

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are read."""
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _application(
    plan: Plan, key: str | None, progress: Callable[[int, int], None] | None = None
) -> tuple[Starlette, Engine]:
    # Brings torch, which takes seconds: a plan that cannot work is refused, and one that can is shown, before that.
    try:
        from dovetail.backends.embedded import EmbeddedEngine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise PlanError(f"the embedded engine needs {error.name}: pip install 'dovetail[engine]'") from error

    target, tokenizer = Path(plan.folders["target"]), Path(plan.folders["tokenizer"])
    settings = engine_settings(plan)
    engine = EmbeddedEngine(target, _drafter(plan), settings, tokenizer_path=tokenizer, progress=progress)
    return _gateway(plan, key, engine, dovetail.tokenizer(tokenizer)), engine


def _gateway(plan: Plan, key: str | None, engine: Engine, tokenizer: Tokenizer) -> Starlette:
    settings = Settings(
        served_model_name=plan.value("served_model_name"),
        strict=plan.value("strict"),
        no_repair=listed_kinds(plan.value("no_repair")),
        retry_invalid=plan.value("retry_invalid") or 0,
        api_key=key,
    )
    # A format that was found by looking at the target may be more than its name says: a chat template, say.
    found = plan.settings["format"].source == "default"
    fmt = dovetail.format(Path(plan.folders["target"]) if found else plan.value("format"))
    return create_app(engine, fmt, tokenizer, settings)


def _drafter(plan: Plan) -> Path | str | None:
    """The drafter as `load_models` takes it. A drafter that never drafts would only cost memory."""
    if not plan.value("draft_tokens"):
        return None
    if plan.value("method") in LOOKUPS:
        return LOOKUP
    return Path(plan.folders["drafter"]) if "drafter" in plan.folders else INSIDE


def engine_settings(plan: Plan) -> EngineSettings:
    """The plan's settings of the embedded engine. Those that the plan leaves to the engine have its defaults."""
    names = {field.name for field in fields(EngineSettings)} & plan.settings.keys()
    values: dict[str, Any] = {name: plan.value(name) for name in names if plan.value(name) is not None}
    return EngineSettings(**values, cost_folder=_cost_folder() if plan.value("gate") == "measured" else None)


def _cost_folder() -> Path | None:
    """The folder of the gate's cost files. None where it cannot be written: step times are then measured at every
    start. https://specifications.freedesktop.org/basedir-spec/latest/
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (cache if cache.is_absolute() else Path.home() / ".cache") / "dovetail" / "costs"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError):  # no home at all; a NUL
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Made before the engine loads: a port in use is known at once, early clients wait in line."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PlanError(f"host {host!r} cannot be resolved: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PlanError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or --host"
        ) from error
    return listener


def _introduce(plan: Plan, console: Console) -> None:
    introduce(plan, console)
    console.print()
    host, port = plan.value("host"), plan.value("port")
    if plan.value("api_key_file") is None and not _is_loopback(host):
        warning = f"warning: {host} is open to other machines and no --api-key-file asks for a key"
        console.print(Text(warning, PROBLEM))
    console.print(Text.assemble("serving ", (address(host, port), "bold green"), "   try:"))
    # Neither wrapped nor read as markup: it must survive being pasted.
    console.print(Text(curl(plan)), soft_wrap=True)
    console.print()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve_behind(plan: Plan, key: str | None, listener: socket.socket, console: Console) -> Coroutine[Any, Any, None]:
    """As `_serve`, on an engine that runs in other processes."""
    # Brings an HTTP client, which the embedded engine has no use for.
    from dovetail.cli import external_engines
    from dovetail.cli.startup_progress import Watching

    tokenizer, watching = dovetail.tokenizer(plan.folders["tokenizer"]), Watching(console)
    engine = external_engines.engine(plan, tokenizer, watching, console)
    app = _gateway(plan, key, engine, tokenizer)
    return _serve(
        app, engine, listener, console, watching, lambda: external_engines.prove(plan, engine, tokenizer, console)
    )


async def _stoppable(serving: Coroutine[Any, Any, None]) -> None:
    """Run it; a signal cancels it, until the server has its own say, so that what it has started ends before us."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(serving)
    told: list[int] = []

    def stop(number: int) -> None:
        if not told:  # a second one would break off the end of what was started
            task.cancel()
        told.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not told:
            raise
        raise SystemExit(128 + told[0]) from None
    finally:
        _unhandle()


def _unhandle() -> None:
    for number in _SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


async def _serve(
    app: Starlette,
    engine: Engine,
    listener: socket.socket,
    console: Console,
    loading: contextlib.AbstractContextManager[object],
    prove: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Start the engine and answer until a signal. `prove` is to be done in between."""
    started = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_unhandle)
        with loading:
            # Entered here and not by uvicorn, which would report an engine that cannot start as a traceback.
            await stack.enter_async_context(app.router.lifespan_context(app))
        if prove is not None:
            await prove()
        console.print(f"ready in {time.perf_counter() - started:.1f} s; Ctrl-C stops", style="dim")
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_S + _LAST_WORD_S,
        )
        server = _Server(config, engine)
        # Of an engine that may die for good: the error that it died of.
        gave_up: asyncio.Future[EngineError] | None = getattr(engine, "gave_up", None)
        if gave_up is not None:
            gave_up.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
        await server.serve(sockets=[listener])
        if gave_up is not None and gave_up.done():
            raise gave_up.result()


class _Server(uvicorn.Server):
    """uvicorn's server, but a signal only ends it: uvicorn raises it again, which would cut the engine's end short.

    Answers that outlast the grace end with the engine's own error, which their clients can read, and not in mid-line.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        def told_to_stop(number: int) -> None:
            self.handle_exit(number, None)
            loop.call_later(_GRACE_S, lambda: ending.append(loop.create_task(self._engine.stop())))

        for number in _SIGNALS:
            loop.add_signal_handler(number, told_to_stop, number)
        try:
            yield
        finally:
            # The engine is still to be ended, in order: a second signal is none.
            for number in _SIGNALS:
                loop.add_signal_handler(number, lambda: None)
