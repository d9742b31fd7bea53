"""The entry point in `vllm.general_plugins`: vLLM calls `register` in every process, sometimes more than once."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from dovetail.errors import DovetailError
from dovetail.plugins.vllm import graphs, names, versions

_PARSERS, _REPAIR = "dovetail.plugins.vllm.register", "dovetail.plugins.vllm.repair"
_ATTENTION = "dovetail.plugins.vllm.mla_backend.LatentBackend"
# The first method of vLLM's configuration that reads `num_speculative_tokens_per_batch_size`.
_READS_LIST = "_maybe_disable_dynamic_sd_for_data_parallel"
_log = logging.getLogger("vllm.dovetail")  # a child of vLLM's logger, because vLLM shows only its own


def register() -> None:
    """Register the parsers by name and the MLA backend, put the repair in front of vLLM's renderers, and let a gated
    vLLM capture CUDA graphs for the numbers of drafts that the gate chooses.

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
    _register_graphs()


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


def _register_graphs() -> None:
    """Let vLLM's configuration get the list of draft lengths just before vLLM reads it."""
    from vllm.config import VllmConfig

    before = getattr(VllmConfig, _READS_LIST, None)
    if before is None or hasattr(before, "adds_list"):
        return

    def adds_list(config: Any) -> None:
        graphs.add_list(config)
        before(config)

    adds_list.adds_list = True  # type: ignore[attr-defined]
    setattr(VllmConfig, _READS_LIST, adds_list)


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
