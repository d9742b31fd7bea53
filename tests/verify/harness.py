"""The verifier in this process: an app as a transport, and a run against it without sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.transport import Reply, Transport
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Header, Journal, digest
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.runner import Plan, run
from dovetail.verify.suites import Suite
from dovetail.verify.suites.base import Case
from tests.brief_server import BriefServer
from tests.verify.model import Model, tokenizer

NAME = "knowing"
Change = Callable[[str, Any, Reply], Reply]


class AppTransport:
    """Requests to an ASGI app. `change` may change each reply: it gets the path and the request's body too."""

    def __init__(self, app: Any, change: Change = lambda path, body, reply: reply) -> None:
        self._app, self._change = app, change
        self.requests: list[tuple[str, bytes | None]] = []

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        self.requests.append((path, body))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"app"), (b"content-type", b"application/json")],
            "scheme": "http",
            "server": ("app", 80),
            "client": ("client", 1),
        }
        inbox = [{"type": "http.request", "body": body or b"", "more_body": False}]
        sent: list[Any] = []
        finished = asyncio.Event()

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            await finished.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self._app(scope, receive, send)
        finally:
            finished.set()
        start, *rest = sent
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        reply = Reply(start["status"], headers, b"".join(message.get("body", b"") for message in rest))
        return self._change(path, body, reply)

    async def close(self) -> None:
        pass


def gateway(model: Model | None = None, fmt: Format | None = None, **settings: Any) -> Any:
    """Dovetail's own gateway in front of the model."""
    model = model or Model()
    return create_app(model, fmt or model.format, model.tokenizer, Settings(served_model_name=NAME, **settings))


def endpoint(transport: Transport, **options: Any) -> Endpoint:
    """An endpoint that never really waits."""

    async def sleep(seconds: float) -> None:
        pass

    limits = options.pop("limits", Limits(max_tokens=256))
    return Endpoint(transport, "http://app", limits=limits, **{"sleep": sleep, **options})


class Only(Suite):
    """The cases of a suite with these names, or beginnings of names."""

    def __init__(self, suite: Suite, *names: str) -> None:
        self._suite, self._names = suite, names
        self.name = suite.name  # type: ignore[misc]
        self.needs = suite.needs  # type: ignore[misc]

    def cases(self) -> Sequence[Case]:
        return [case for case in self._suite.cases() if case.name.startswith(self._names)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._suite, name)

    async def check(self, *arguments: Any) -> Any:
        return await self._suite.check(*arguments)

    def figures(self, outcomes: Sequence[Outcome]) -> Any:
        return self._suite.figures(outcomes)


def kimi(*, tokens: bool = True) -> Language:
    return Language(KimiK25(), tokenizer() if tokens else None)


def verified(*endpoints: Endpoint, suites: Sequence[Suite], language: Language | None = None, **options: Any) -> Any:
    """The outcomes of a run."""
    nowhere = Journal(None, Header((), (), digest(())))
    return asyncio.run(
        run(
            endpoints,
            Plan(suites, options.pop("runs", 1), options.pop("concurrency", 2), options.pop("undrafted", {})),
            kimi() if language is None else language,
            journal=options.pop("journal", nowhere),
            bundles=options.pop("bundles", Bundles(None)),
            **options,
        )
    )


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The URL of a server of `app` on loopback."""
    server = BriefServer(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
