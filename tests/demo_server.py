"""Apps, and the bundled demo pair, behind a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

import dovetail
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.engine.settings import EngineSettings
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.keys import Keyring
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.inspect.routes import inspect_routes
from tests.brief_server import BriefServer

DEMO = Path(dovetail.__file__).parent / "data" / "demo"


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """A server of `app` on a port of its own, in a thread; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = BriefServer(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@contextmanager
def demo_server(
    recordings: RecordingOptions | None = None, api_key: str | None = None, keys: Keyring | None = None, **more: Any
) -> Iterator[str]:
    """A server of the model `demo` on a port of its own; yields its address."""
    engine = EmbeddedEngine(DEMO / "target", DEMO / "drafter", EngineSettings(draft_tokens=3, max_batch=4, threads=1))
    tokenizer = dovetail.tokenizer(DEMO / "target")
    settings = Settings(served_model_name="demo", recordings=recordings, api_key=api_key, keys=keys, **more)
    more = inspect_routes(settings, tokenizer)
    app = create_app(engine, dovetail.format(DEMO / "target"), tokenizer, settings, more=more)
    with served(app) as url:
        yield url
