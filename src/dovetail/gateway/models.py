"""The models of a server: which one the name in a request means, and whether it takes requests now."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from dovetail.completion import Engine, MetricSample
from dovetail.errors import EngineBusy, InvalidRequest, NotOffered, UnknownModel
from dovetail.formats.base import Format
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.limits.queue import Admission
from dovetail.gateway.observe.metrics import Metrics, ModelMetrics
from dovetail.gateway.records.memory import Memory
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Tokenizer

_LOG = logging.getLogger("dovetail.gateway")

#: The longest name that an alias may stand for, in characters.
_LONGEST_NAME = 256
#: The most names in an error.
_MOST_NAMES = 32
#: Seconds until a request may try again whose model is not ready.
_RETRY_S = 10

Status = Literal["starting", "ready", "down", "failed"]


class Names(msgspec.Struct, frozen=True):
    """A model's `name`, its `aliases`, in which * stands for any text, and the names of the engine's LoRA `adapters`,
    which are models of their own to clients and keys."""

    name: str
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    def serve(self, name: str) -> bool:
        """Whether the model or one of its adapters is served under `name`."""
        if name == self.name or name in self.adapters:
            return True
        return len(name) <= _LONGEST_NAME and any(_pattern(alias).fullmatch(name) for alias in self.aliases)

    def allowed(self, account: Account | None, name: str) -> bool:
        """Whether the key may use the model under `name`. A key for the model may use its aliases too."""
        if account is None or account.allows(name):
            return True
        return name not in self.adapters and account.allows(self.name)

    def listed(self, account: Account | None) -> list[str]:
        """The names that a list of models shows the key."""
        names = (self.name, *(alias for alias in self.aliases if "*" not in alias), *self.adapters)
        return [name for name in names if self.allowed(account, name)]


@functools.lru_cache
def _pattern(alias: str) -> re.Pattern[str]:
    return re.compile("(?s:.*)".join(map(re.escape, alias.split("*"))))


class Model:
    """A model that writes: its engine, and what runs its turns."""

    def __init__(
        self, engine: Engine, fmt: Format, tokenizer: Tokenizer, settings: Settings, memory: Memory | None = None
    ) -> None:
        self.engine = engine
        self.runner = TurnRunner(engine, fmt, tokenizer, settings, memory)
        self.admission = Admission(settings.queue)
        self._warns_of_salts = settings.keys is not None and settings.salt_cache

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return self.runner.context

    async def start(self) -> None:
        """Start the engine, and do what would make the first request slow. Raises what the engine's `start` does."""
        await self.engine.start()
        if self._warns_of_salts and not self.runner.salts_cache:
            _LOG.warning("the engine has no salts for cached prompts: its cache tells one key what others have asked")
        try:
            await asyncio.to_thread(self.runner.warm_up)
        except BaseException:
            await self.engine.stop()
            raise

    async def stop(self) -> None:
        """Stop the engine."""
        await self.engine.stop()

    def gauges(self) -> list[MetricSample]:
        """The engine's own metrics."""
        return [*self.engine.gauges()]


class Relay(Protocol):
    """A model whose requests and responses are passed through as they are. `passes`: which kinds."""

    passes: tuple[str, ...]
    #: The engine's own name for the model.
    model: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def gauges(self) -> list[MetricSample]: ...

    async def passed(self, path: str, data: bytes, content_type: str) -> tuple[int, str, str | None, bytes]:
        """The status, the content type, Retry-After and the body of the engine's response. Raises `EngineError`."""


class Served:
    """One model by its names, with what answers for it as long as it is `ready`."""

    def __init__(self, names: Names, metrics: ModelMetrics) -> None:
        self.names = names
        self.metrics = metrics
        self.created = int(time.time())
        self.instance: Model | Relay | None = None
        self._status: Literal["starting", "ready", "failed"] = "starting"
        self._why = "it is starting"
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self, instance: Model | Relay) -> None:
        """Take requests from now on."""
        self.instance, self._status, self._why = instance, "ready", ""

    def failed(self, why: str) -> None:
        """Refuse requests from now on. `why` is for clients."""
        self.instance, self._status, self._why = None, "failed", why

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt and its answer together; None if that is not known."""
        return self.instance.context if isinstance(self.instance, Model) else None

    @property
    def status(self) -> Status:
        """Whether requests can be answered. An engine in another process may be `down`, and come back."""
        if self.instance is None:
            return self._status
        return "ready" if all(each.value > 0 for each in self.instance.gauges() if each.name == "up") else "down"

    @property
    def model(self) -> Model:
        """The model that writes. Raises `EngineBusy` if it is not ready, `NotOffered` if it does not write."""
        instance = self._instance()
        if isinstance(instance, Model):
            return instance
        raise NotOffered(f"the model {self.names.name!r} has {' and '.join(instance.passes)} only", param="model")

    def relay(self, passed: str) -> Relay:
        """The model that has `passed`. Raises `EngineBusy` if it is not ready, `NotOffered` if it has not."""
        instance = self._instance()
        if isinstance(instance, Model) or passed not in instance.passes:
            raise NotOffered(
                f"the model {self.names.name!r} has no {passed}: the file of models says under `passes` what an engine "
                "has",
                param="model",
            )
        return instance

    def _instance(self) -> Model | Relay:
        if self.instance is None:
            error = EngineBusy(f"the model {self.names.name!r} takes no requests now: {self._why}")
            error.retry_after = _RETRY_S
            raise error
        return self.instance

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A request runs, for which `idle` waits."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()


class _Named(msgspec.Struct):
    model: str = ""


_NAMED = msgspec.json.Decoder(_Named)


class Models:
    """The models by name, in the order in which they are listed. Changed on one event loop.

    `only`: the one model of a server that has no others, of which every request is.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._served: dict[str, Served] = {}
        self.counters = metrics
        self._counted: set[str] = set()
        self.only: Served | None = None

    def __iter__(self) -> Iterator[Served]:
        return iter([*self._served.values()])

    def new(self, names: Names) -> Served:
        """A model that is not served yet. What was counted of one of that name goes on."""
        return Served(names, self._metrics_of(names.name))

    def put(self, served: Served) -> Served | None:
        """Serve a model. Returns the one that had its name."""
        earlier = self._served.get(served.names.name)
        self._served[served.names.name] = served
        return earlier

    def remove(self, name: str) -> Served:
        """Serve a model no more."""
        return self._served.pop(name)

    @property
    def metrics(self) -> ModelMetrics:
        """Where a request counts whose model is not known yet."""
        return self.only.metrics if self.only is not None else self._metrics_of("")

    def _metrics_of(self, name: str) -> ModelMetrics:
        metrics = self.counters.of(name, functools.partial(self._gauges, name))
        if name and name not in self._counted:
            self._counted.add(name)
            waiting, prompts = "Requests that wait for a place in the engine", "Tokens of the prompts of such requests"
            metrics.gauge("queued_requests", waiting, lambda: sum(each.waiting for each in self._admissions(name)))
            metrics.gauge("queued_tokens", prompts, lambda: sum(each.waiting_tokens for each in self._admissions(name)))
            metrics.gauge("model_ready", "Whether requests for the model are answered", lambda: self._is_ready(name))
        return metrics

    def _is_ready(self, name: str) -> bool:
        return (served := self._served.get(name)) is not None and served.status == "ready"

    def _gauges(self, name: str) -> list[MetricSample]:
        served = self._served.get(name)
        return [] if served is None or served.instance is None else served.instance.gauges()

    def _admissions(self, name: str) -> list[Admission]:
        served = self._served.get(name)
        return [served.instance.admission] if served is not None and isinstance(served.instance, Model) else []

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return [*self._served]

    def listed(self, account: Account | None) -> list[tuple[str, Served]]:
        """What a key may use: each name with its model."""
        return [(name, served) for served in self for name in served.names.listed(account)]

    def find(self, name: str, account: Account | None) -> Served:
        """The model under `name`. Raises `UnknownModel` if there is none for the key."""
        exact = self._served.get(name)
        candidates = self._served.values() if exact is None else (exact,)
        found = next((each for each in candidates if each.names.serve(name)), None)
        if found is None or not found.names.allowed(account, name):
            raise self.unknown(name, account)
        return found

    def check(self, served: Served, name: str, account: Account | None) -> None:
        """Raise `UnknownModel` unless the key may use `served` under `name`."""
        if not served.names.serve(name) or not served.names.allowed(account, name):
            raise self.unknown(name, account)

    def of_json(self, body: bytes, account: Account | None) -> Served:
        """The model that a request in JSON names. Raises `UnknownModel` and `InvalidRequest`.

        One model alone is not looked for in the body: `check` is for when that is read.
        """
        if self.only is not None:
            return self.only
        try:
            name = _NAMED.decode(body).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("the body must be a JSON object whose model is a text", param="model") from None
        if not name:
            raise InvalidRequest(f"model is required: {self._there(account)}", param="model")
        return self.find(name, account)

    def unknown(self, name: str, account: Account | None) -> UnknownModel:
        """The error for a request that names another model than those for the key."""
        return UnknownModel(f"the model {name!r:.80} is not served here; {self._there(account)}", param="model")

    def _there(self, account: Account | None) -> str:
        names = [repr(name) for name, _ in self.listed(account)]
        if not names:
            return "there is no model for this key" if account is not None else "there is no model now"
        shown = [*names[:_MOST_NAMES], *([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])]
        return f"{' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} {'is' if len(shown) == 1 else 'are'}"

    def if_some_see(self, size: int) -> int:
        """`size` if some model sees pictures, else 0."""
        return size * any(isinstance(each.instance, Model) and each.instance.runner.sees for each in self)

    @property
    def up(self) -> bool:
        """Whether some model can answer."""
        return any(each.status == "ready" for each in self)

    async def start(self) -> None:
        """Start the engines that there are. Raises what their `start` does."""
        await asyncio.gather(*(each.instance.start() for each in self if each.instance is not None))

    async def stop(self) -> None:
        """Stop all engines."""
        await asyncio.gather(*(each.instance.stop() for each in self if each.instance is not None))
