"""SGLang's parsers as a worker, made and fed as its chat endpoint does it: reasoning first, what is left to the tools.

The parsers are pure Python, but importing them the plain way brings a GPU stack. Here the packages above them are
entered without running their `__init__`, and what only their type annotations name is left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.reading.measure import Open, Piece, Stream, serve
from benchmarks.reading.sglang_recipe import open_recipe

_PACKAGES = ("", "srt", "srt.function_call", "srt.parser", "srt.entrypoints", "srt.entrypoints.openai", "srt.utils")
_ANNOTATIONS_ONLY = ("transformers", "xgrammar", "xgrammar.structural_tag", "sglang.utils")


class _Absent(ModuleType):
    """A module that was left out; every name in it is an empty model, which an annotation may refer to."""

    __path__: list[str] = []  # noqa: RUF012 - the import system reads it from the module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from pydantic import BaseModel

        return type(name, (BaseModel,), {})


def _enter_packages() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("sglang is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in _PACKAGES:
        module = ModuleType(f"sglang.{name}".rstrip("."))
        module.__path__ = [str(root.joinpath(*filter(None, name.split("."))))]
        sys.modules[module.__name__] = module
    for name in _ANNOTATIONS_ONLY:
        sys.modules[name] = _Absent(name)


def _unsent(detector: Any) -> list[Piece]:
    """What the endpoint sends at the end: arguments that the detector has parsed and not streamed."""
    parsed = getattr(detector, "prev_tool_call_arr", None)
    sent = getattr(detector, "streamed_args_for_tool", None)
    if not parsed or not sent or len(parsed) > len(sent):
        return []
    arguments = parsed[-1].get("arguments", {})
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    already = sent[len(parsed) - 1]
    return [("arguments", len(parsed) - 1, whole[len(already) :])] if whole.startswith(already) else []


def read(returned: tuple[str | None, str, list[Any], list[Piece]]) -> Iterable[Piece]:
    """Reasoning, content and call items as pieces."""
    reasoning, content, calls, rest = returned
    if reasoning:
        yield "reasoning", 0, reasoning
    if content:
        yield "content", 0, content
    for call in calls:
        if call.name:
            yield "name", call.tool_index, call.name
        if call.parameters:
            yield "arguments", call.tool_index, call.parameters
    yield from rest


def _no_calls(text: str) -> tuple[str, list[Any]]:
    """What the endpoint makes of text that is no reasoning if the request has no tools."""
    return text, []


def load() -> tuple[dict[str, str], Callable[[dict[str, Any]], Open]]:
    """`serve` has the contract."""
    _enter_packages()
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    def open_family(job: dict[str, Any]) -> Open:
        if job["parsers"]["sglang"]["tools"] == "deepseek-recipe":
            return open_recipe(job)
        tools = [Tool.model_validate(tool) for tool in job["tools"]]
        names = job["parsers"]["sglang"]

        def start() -> Stream:
            calls = FunctionCallParser(tools, names["tools"]) if tools else None
            thoughts = None
            if names["reasoning"] is not None:
                # The endpoint counts a model that thinks by default as thinking unless the request says otherwise.
                thoughts = ReasoningParser(
                    names["reasoning"],
                    force_reasoning=job.get("force_reasoning", True),
                    tool_call_parser_active=calls is not None,
                )

            parsed: Callable[[str], Any] = _no_calls if calls is None else calls.parse_stream_chunk

            def feed(text: str, ids: Any) -> Any:
                if thoughts is None:
                    return (None, *parsed(text), ())
                reasoning, text = thoughts.parse_stream_chunk(text)
                return (reasoning, *parsed(text), ())

            def last(text: str, ids: Any) -> Any:
                reasoning = ""
                if thoughts is not None:
                    reasoning, text = thoughts.parse_stream_chunk(text)
                    more, leftover = thoughts.parse_stream_end()
                    reasoning, text = (reasoning or "") + (more or ""), (text or "") + (leftover or "")
                content, items = parsed(text)
                if calls is None:
                    return reasoning, content, items, ()
                ending, found = calls.parse_stream_end()
                return reasoning, (content or "") + ending, [*items, *found], _unsent(calls.detector)

            return Stream(feed, last, read)

        start()
        return start

    return {"sglang": importlib.metadata.version("sglang")}, open_family


if __name__ == "__main__":
    serve(load)
