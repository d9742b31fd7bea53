"""Creates a parser class when vLLM asks for it by its registered name: `dovetail_kimi_k2_tools`, `kimi_k2_reasoning`.

vLLM's version is checked before anything of vLLM is imported, so that an unsupported version gets a clear error even if
its modules have moved.
"""

from __future__ import annotations

from typing import Any

from dovetail.plugins.vllm import names, versions


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
