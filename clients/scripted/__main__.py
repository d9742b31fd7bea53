"""A scripted model as a server on loopback: `python -m clients.scripted FORMAT --log FILE`; prints its port."""

from __future__ import annotations

import argparse
import socket
import tempfile
from pathlib import Path

import uvicorn

from clients.scripted import models
from clients.scripted.engine import ScriptedEngine
from dovetail.gateway import Settings, create_app

MODEL = "scripted"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clients.scripted")
    parser.add_argument("format", choices=models.WIRES)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = models.load(arguments.format, Path(folder))
        responses, memory = Path(folder) / "responses", Path(folder) / "memory"
        settings = Settings(served_model_name=MODEL, response_store=responses, memory=memory)
        app = create_app(ScriptedEngine(model, arguments.log), model.format, model.tokenizer, settings)
        listener = socket.create_server(("127.0.0.1", arguments.port))
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
