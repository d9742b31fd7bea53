"""`dovetail serve --models FILE`: models that start, come and go while the server answers.

Each starts for itself. What fails in an engine is tried again, and what a person has to mend waits for the next SIGHUP,
at which the file is read again. A model that is gone from it, or has changed, ends when its requests are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import TracebackType
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.backends.remote.relay import RelayedServers
from dovetail.cli.embedded_engine import embedded_engine
from dovetail.cli.external_engines import check_engine, external_engine
from dovetail.cli.plan import headline
from dovetail.cli.serve import check_servable, model_fields, plan_format
from dovetail.cli.startup_progress import StartupProgress, errors_ignored
from dovetail.errors import DovetailError, EngineBusy, EngineError, PlanError
from dovetail.gateway import Settings
from dovetail.gateway.models import Model, Models, Names, Relay, Served
from dovetail.gateway.records.memory import Memory
from dovetail.plan import resolve
from dovetail.plan.models_file import ModelEntry, ModelsFile, read_models
from dovetail.server.api_keys import key_in

_LOG = logging.getLogger("dovetail.serve")
#: Seconds until a model whose engine has failed is started again.
RETRY_S = 10.0


class Made(NamedTuple):
    """A model that is not started yet: what is checked once its engine runs, what it is in one line, and whether the
    engine is in this process."""

    instance: Model | Relay
    check: Callable[[], Awaitable[None]]
    headline: str
    embedded: bool = False


class ServedModels:
    """Keeps `models` to what the file has. A context in which the first of them begin to start."""

    def __init__(
        self, file: ModelsFile, models: Models, settings: Settings, memory: Memory | None, console: Console
    ) -> None:
        self._file = file
        self._models = models
        self._settings = settings
        self._memory = memory
        # One without bars: several of them cannot be on one terminal.
        self._console = Console(file=console.file, highlight=False, force_terminal=False, width=console.width)
        self._quiet = Console(quiet=True)  # for what is tried again and again
        # msgspec builds what it knows of a type at its first use, and a second thread that does so meanwhile crashes.
        self._one_at_a_time = asyncio.Lock()
        self._entries: dict[str, ModelEntry] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], Served] = {}

    def __enter__(self) -> None:
        self.keep_to(self._file.entries)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    async def reload(self) -> None:
        """Read the file again. One with errors changes nothing and is one line in the log."""
        try:
            async with self._one_at_a_time:
                entries = await asyncio.to_thread(read_models, self._file.path)
        except PlanError as error:
            _LOG.error("the models stay as they were: %s", error.message)
        else:
            self.keep_to(entries)
            _LOG.warning("%d models were read again from %s", len(entries), self._file.path)

    def keep_to(self, entries: list[ModelEntry]) -> None:
        """Serve the models of `entries`, and no others."""
        wanted = {entry.name: entry for entry in entries}
        for name in [*self._entries.keys() - wanted.keys()]:
            del self._entries[name]
            self._cancel(name)
            self._end(self._models.remove(name))
        for name, entry in wanted.items():
            failed = any(each.names.name == name and each.status == "failed" for each in self._models)
            if self._entries.get(name) != entry or failed:
                self._entries[name] = entry
                self._begin(entry)

    async def stop(self) -> None:
        """Stop all engines. What runs ends with an error."""
        tasks = [*self._starting.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._models.stop()

    def _cancel(self, name: str) -> None:
        if (task := self._starting.pop(name, None)) is not None:
            task.cancel()

    def _begin(self, entry: ModelEntry) -> None:
        self._cancel(entry.name)
        served = self._models.new(Names(entry.name, entry.aliases, entry.adapters))
        if all(each.names.name != entry.name or each.instance is None for each in self._models):
            self._models.put(served)  # else the earlier one goes on until this one is ready
        self._starting[entry.name] = asyncio.create_task(self._start(entry, served))

    async def _start(self, entry: ModelEntry, served: Served) -> None:
        """Start a model until it runs, and watch it."""
        again, why, console = True, "", self._console
        while again:
            again = False
            try:
                instance = await self._started(entry, console)
            except DovetailError as error:
                again = isinstance(error, EngineError | EngineBusy)
                if error.message != why:
                    why = error.message
                    self._failed(served, why)
                console = self._quiet
                await asyncio.sleep(RETRY_S if again else 0)
            except Exception as error:
                _LOG.error("%s cannot be started", entry.name, exc_info=error)
                served.failed("it could not be started; the server's log has more")
            else:
                served.ready(instance)
                earlier = self._models.put(served)
                if earlier is not None and earlier is not served:
                    self._end(earlier)
                gave_up = getattr(instance.engine, "gave_up", None) if isinstance(instance, Model) else None
                if gave_up is None:
                    return
                self._failed(served, (await gave_up).message)
                await instance.stop()

    def _failed(self, served: Served, why: str) -> None:
        serves = any(each is served for each in self._models)
        _LOG.error("%s %s: %s", served.names.name, "takes no requests" if serves else "stays as it was", why)
        served.failed(why)

    async def _started(self, entry: ModelEntry, console: Console) -> Model | Relay:
        """The model of `entry`, whose engine runs. Raises `DovetailError`."""
        async with self._one_at_a_time:
            made = await asyncio.to_thread(self._made, entry, console)
        instance = made.instance
        try:
            async with self._one_at_a_time if made.embedded else nullcontext():
                await instance.start()
            await made.check()
        except BaseException:
            await instance.stop()
            raise
        with errors_ignored():
            self._console.print(Text(f"{entry.name} is ready: {made.headline}", "dim"), soft_wrap=True)
        return instance

    def _made(self, entry: ModelEntry, console: Console) -> Made:
        """The model of `entry`, not started yet. What is done for it is shown on `console`."""
        if entry.passes:
            return self._passed(entry)
        plan = resolve(None, self._file.options, config=self._file.config, recipe=entry.recipe, entry=entry.settings)
        check_servable(plan)
        tokenizer, fmt = dovetail.tokenizer(plan.folders["tokenizer"]), plan_format(plan)
        settings = msgspec.structs.replace(self._settings, **model_fields(plan))
        if plan.value("engine") == "embedded":
            model = Model(embedded_engine(plan), fmt, tokenizer, settings, self._memory)
            return Made(model, _nothing, headline(plan), embedded=True)
        progress = StartupProgress(console, entry.name)
        engine = external_engine(plan, fmt, tokenizer, progress, console)

        async def check() -> None:
            if entry.adapters and not engine.info.adapters:
                raise PlanError(f"adapters need vLLM, and {plan.value('engine')} is another engine")
            await check_engine(plan, engine, fmt, tokenizer, console)

        return Made(Model(engine, fmt, tokenizer, settings, self._memory), check, headline(plan))

    def _passed(self, entry: ModelEntry) -> Made:
        addresses = [address.strip() for address in entry.settings["engine"].split(",")]
        key = entry.settings.get("engine_api_key_file")
        key = None if key is None else key_in(key, "engine_api_key_file")
        what = f"{' and '.join(entry.passes)} of {entry.settings['engine']}"
        return Made(RelayedServers(addresses, entry.passes, key), _nothing, what)

    def _end(self, served: Served) -> None:
        """Stop a model that gets no requests any more when those are answered that it has."""
        task = asyncio.create_task(self._ended(served))
        self._ending[task] = served
        task.add_done_callback(lambda task: self._ending.pop(task, None))

    async def _ended(self, served: Served) -> None:
        try:
            await served.idle()
        finally:
            if served.instance is not None:
                await served.instance.stop()
        _LOG.warning("%s has ended", served.names.name)


async def _nothing() -> None:
    """Nothing more is checked."""
