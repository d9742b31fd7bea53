"""The parsers under the names that were registered: `dovetail_kimi_k2_tools`, `kimi_k2_reasoning`.

What vLLM imports when it is asked for one. Nothing of vLLM is imported here before its version was looked at, so that
in another one it is the range that is told, whatever has moved there.
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
    made = parsers.Joining(name, (base,), {"candidates": candidates, "__module__": __name__, "parser_name": parser})
    globals()[name] = made
    return made
