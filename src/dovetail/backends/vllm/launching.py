"""The command line and the environment with which vLLM is started for a plan."""

from __future__ import annotations

import os
import secrets

from dovetail.backends.supervised.program import Launch
from dovetail.backends.vllm.program import VLLM
from dovetail.plan import Plan
from dovetail.plan.emit import vllm
from dovetail.plan.options import BY_NAME

#: Settings that Dovetail follows itself, though vLLM has options for them.
_NOT_VLLMS = ("gpus", "host", "port", "api_key_file", "format")
#: Options that Dovetail needs beside the plan's.
_ALWAYS = (
    "--disable-uvicorn-access-log",  # Dovetail asks for health and metrics every second
    "--enable-prompt-tokens-details",  # reports how much of a prompt was cached
    "--enable-scale-out",  # has the endpoint for pictures (backends/remote/vllm_pictures.py), on its socket only
)
#: Reports the draft tokens of each request. vLLM refuses the option without speculation.
_DRAFTING = "--per-request-spec-decode-metrics=summary"


def launch(plan: Plan, program: str, version: str, path: str, markers: tuple[str, str] | None = None) -> Launch:
    """`program serve …` for the plan, on the Unix socket `path`. Raises `PlanError` if the version is too old.

    `markers`: see `vllm.command`.
    """
    settings = {name: setting for name, setting in plan.settings.items() if _is_vllms(name)}
    command = vllm.command(settings, version, markers)
    key = secrets.token_urlsafe(32)
    added = (*_ALWAYS, _DRAFTING) if "--speculative-config" in command.argv else _ALWAYS
    return Launch(
        program=VLLM(program),
        # Dovetail's own options last: vLLM takes the last of two equal options.
        arguments=(program, *command.argv[1:], *added, "--uds", path),
        environment={**os.environ, **command.variables, "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key},
        key=key,
        notes=command.notes,
    )


def _is_vllms(name: str) -> bool:
    """Whether a setting is passed to vLLM, rather than followed by the gateway in front of it."""
    option = BY_NAME.get(name)
    return name not in _NOT_VLLMS and (option is None or not option.gateway or "vllm" in option.engine_names)
