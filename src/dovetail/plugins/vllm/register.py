"""The entry point in `vllm.general_plugins`: vLLM calls `register` in every process, perhaps more than once."""

from __future__ import annotations

import contextlib
import logging
import os

from dovetail.errors import DovetailError
from dovetail.plugins.vllm import names, versions

_PARSERS, _REPAIR = "dovetail.plugins.vllm.by_name", "dovetail.plugins.vllm.repair"
_log = logging.getLogger("vllm.dovetail")  # below vLLM's logger, which is the one that is shown


def register() -> None:
    """Register the parsers, by name only (what a name stands for is imported when vLLM asks for it), and the repair.

    In a version of vLLM that was not tested the names are registered too, and whoever asks for one is told the range;
    nothing else is touched there. Raises `DovetailError` for what `names.OVERRIDE` and `names.NO_REPAIR` cannot hold.
    """
    tools, reasoning = names.overridden(os.environ.get(names.OVERRIDE, ""))
    try:
        versions.check_installed("dovetail's plugin")
    except DovetailError as error:
        _log.log(logging.WARNING if tools or reasoning else logging.DEBUG, "%s", error)
        with contextlib.suppress(Exception):  # whatever an unknown version has changed, it is to run without us
            _register_parsers(tools, reasoning)
        return
    _register_parsers(tools, reasoning)
    _register_repair()


def _register_parsers(tools: names.Names, reasoning: names.Names) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for name in (*names.OWN, *tools):
        ToolParserManager.tool_parsers.pop(name, None)  # one that was imported already would be found first
        ToolParserManager.register_lazy_module(name, _PARSERS, f"{name}_tools")
    for name in (*names.OWN, *reasoning):
        ReasoningParserManager.reasoning_parsers.pop(name, None)
        ReasoningParserManager.register_lazy_module(name, _PARSERS, f"{name}_reasoning")


def _register_repair() -> None:
    from vllm.renderers.registry import RENDERER_REGISTRY

    names.repairs_off(os.environ.get(names.NO_REPAIR, ""))  # a word that is none of its own is refused at once
    # Written into the table, because its `register` warns of what it overwrites.
    for mode, (module, name) in RENDERER_REGISTRY.renderers.items():
        if module != _REPAIR:
            RENDERER_REGISTRY.renderers[mode] = (_REPAIR, f"{module.replace('.', '/')}:{name}")
