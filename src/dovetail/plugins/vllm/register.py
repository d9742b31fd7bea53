"""The entry point in `vllm.general_plugins`: vLLM calls `register` in every process, sometimes more than once."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from dovetail.errors import DovetailError
from dovetail.plugins.vllm import names, versions

_PARSERS, _REPAIR = "dovetail.plugins.vllm.register", "dovetail.plugins.vllm.repair"
_ATTENTION = "dovetail.plugins.vllm.mla_backend.LatentBackend"
_log = logging.getLogger("vllm.dovetail")  # a child of vLLM's logger, because vLLM shows only its own


def register() -> None:
    """Register the parsers by name and the MLA backend, and put the repair in front of vLLM's renderers.

    Parsers and backend are imported on first use.

    In an untested version of vLLM only the names are registered, and a parser raises an error that names the supported
    versions. Raises `DovetailError` for bad values of the environment variables in `names`.
    """
    tools, reasoning = names.overridden(os.environ.get(names.OVERRIDE, ""))
    try:
        versions.check_installed("dovetail's plugin")
    except DovetailError as error:
        _log.log(logging.WARNING if tools or reasoning else logging.DEBUG, "%s", error)
        with contextlib.suppress(Exception):  # an unknown version of vLLM must run as if the plugin were not there
            _register_parsers(tools, reasoning)
        return
    names.on_malformed_call(os.environ.get(names.ON_MALFORMED_CALL, ""))  # refuses other words at start
    _register_parsers(tools, reasoning)
    _register_repair()
    _register_attention()


def _register_parsers(tools: names.Names, reasoning: names.Names) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for name in (*names.OWN, *tools):
        ToolParserManager.tool_parsers.pop(name, None)  # a parser that is imported already would win
        ToolParserManager.register_lazy_module(name, _PARSERS, f"{name}_tools")
    for name in (*names.OWN, *reasoning):
        ReasoningParserManager.reasoning_parsers.pop(name, None)
        ReasoningParserManager.register_lazy_module(name, _PARSERS, f"{name}_reasoning")


def _register_repair() -> None:
    from vllm.renderers.registry import RENDERER_REGISTRY

    names.repairs_off(os.environ.get(names.NO_REPAIR, ""))  # refuses unknown kinds at start
    # Written into the table directly, because its `register` warns about each overwritten entry.
    for mode, (module, name) in RENDERER_REGISTRY.renderers.items():
        if module != _REPAIR:
            RENDERER_REGISTRY.renderers[mode] = (_REPAIR, f"{module.replace('.', '/')}:{name}")


def _register_attention() -> None:
    """As `CUSTOM`: vLLM sends its configuration to processes that cannot read a new name before they load plugins."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    slot = AttentionBackendEnum.CUSTOM
    if not slot.is_overridden():
        register_backend(slot, _ATTENTION)
    elif slot.get_path() != _ATTENTION:
        _log.info("attention backend CUSTOM is %s, so Dovetail's for MLA cannot be chosen", slot.get_path())


def __getattr__(name: str) -> Any:
    parser, _, kind = name.rpartition("_")
    built_in = {"tools": names.TOOL_PARSERS, "reasoning": names.REASONING_PARSERS}.get(kind, {})
    candidates = names.OWN.get(parser) or built_in.get(parser)
    if kind not in ("tools", "reasoning") or candidates is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    versions.check_installed("dovetail's parsers")
    from dovetail.plugins.vllm import parsers

    base = parsers.ToolReader if kind == "tools" else parsers.ReasoningReader
    members = {"candidates": candidates, "__module__": __name__, "parser_name": parser}
    globals()[name] = parsers.CompositionHook(name, (base,), members)
    return globals()[name]
