"""The command line and the environment with which llama.cpp's server is started for a plan."""

from __future__ import annotations

import os
import secrets

from dovetail.backends.llama_cpp.program import LlamaServer
from dovetail.backends.supervised.program import Launch
from dovetail.checkpoints.gguf.folder import gguf_file
from dovetail.plan import Plan, Setting
from dovetail.plan.emit import llama_cpp
from dovetail.plan.options import BY_NAME

#: Settings that Dovetail follows itself, though engines have options for them.
_FOLLOWED = ("gpus", "host", "port", "api_key_file", "format", "prompt_lookup_min")
#: Options that Dovetail needs beside the plan's.
_ALWAYS = ("--metrics", "--no-webui", "--offline")


def launch(plan: Plan, program: str, path: str) -> Launch:
    """`llama-server …` for the plan, on the Unix socket `path`."""
    files = {name: gguf_file(plan.folders[name]) for name in ("target", "drafter") if name in plan.folders}
    named = {name: Setting(str(file), plan.settings[name].source) for name, file in files.items()}
    settings = {name: setting for name, setting in plan.settings.items() if not _is_gateways(name)}
    command = llama_cpp.command({**settings, **named})
    key = secrets.token_urlsafe(32)
    return Launch(
        program=LlamaServer(),
        arguments=(program, *command.argv[1:], *_ALWAYS, "--host", path),
        environment={**os.environ, **command.variables, "LLAMA_API_KEY": key},
        key=key,
        notes=command.notes,
    )


def _is_gateways(name: str) -> bool:
    option = BY_NAME[name]
    return name in _FOLLOWED or (option.gateway and "llama.cpp" not in option.engine_names)
