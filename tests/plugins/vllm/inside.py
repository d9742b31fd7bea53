"""Runs in a Python that has vLLM: reads outputs through vLLM's own serving code, one job in JSON a line.

A job names parsers, a checkpoint folder with a tokenizer, the ids of a prompt and of an output, and how they are cut.
The text of each delta is made by vLLM's own detokenizer; the answer is what its chat endpoint would have been given.
Needs nothing but vLLM, what dovetail itself needs, and the standard library.
"""

from __future__ import annotations

import functools
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))


@functools.cache
def tokenizer_of(folder: str) -> Any:
    from transformers import PreTrainedTokenizerFast
    from vllm.tokenizers.hf import get_cached_tokenizer

    return get_cached_tokenizer(PreTrainedTokenizerFast.from_pretrained(folder))


@functools.cache
def parser_class(tools: str | None, reasoning: str | None, folder: str, harmony: bool) -> Any:
    from vllm.parser.parser_manager import ParserManager

    return ParserManager.get_parser(
        tool_parser_name=tools,
        reasoning_parser_name=reasoning,
        enable_auto_tools=tools is not None,
        is_harmony=harmony,
        model_name="test",
        tokenizer=tokenizer_of(folder),
    )


def request_of(job: dict[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        model="test",
        messages=[{"role": "user", "content": "Go on."}],
        tools=job["tools"],
        stream=True,
        chat_template_kwargs=job.get("options") or None,
        **job.get("fields", {}),
    )


def open_parser(job: dict[str, Any], request: Any) -> Any:
    made = parser_class(job["tool_parser"], job["reasoning_parser"], job["folder"], job.get("harmony", False))
    options = job.get("options") or {}
    parser = made(tokenizer_of(job["folder"]), request.tools, chat_template_kwargs=options, model_config=None)
    parser.set_prompt_token_ids(job["prompt"])
    return parser


def deltas(job: dict[str, Any], request: Any) -> Iterator[tuple[str, list[int], bool]]:
    """Text, ids and whether it is the last, as vLLM's output processor hands them to the endpoint."""
    from types import SimpleNamespace

    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    params = SamplingParams(
        stop=job.get("stop"),
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
    )
    asked = SimpleNamespace(request_id="test", sampling_params=params, prompt_token_ids=job["prompt"])
    detokenizer = FastIncrementalDetokenizer(tokenizer_of(job["folder"]), asked)
    groups = job["groups"]
    taken = 0
    for number, group in enumerate(groups):
        ended = job["ended"] and number == len(groups) - 1  # its last token is the end of the turn
        matched = detokenizer.update(list(group), ended)
        last = matched is not None or number == len(groups) - 1
        ids = detokenizer.output_token_ids[taken:]
        taken += len(ids)
        yield detokenizer.get_next_output_text(last, delta=True), ids, last
        if matched is not None:
            return


class Folded:
    """What the deltas of one output add up to."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.chunks = 0

    def add(self, delta: Any) -> None:
        if delta is None:
            return
        self.chunks += 1
        self.content += delta.content or ""
        self.reasoning += delta.reasoning or ""
        for call in delta.tool_calls or ():
            while len(self.calls) <= call.index:
                self.calls.append({"id": None, "name": "", "arguments": ""})
            entry = self.calls[call.index]
            entry["id"] = entry["id"] or call.id
            if call.function is not None:
                entry["name"] += call.function.name or ""
                entry["arguments"] += call.function.arguments or ""

    def answer(self) -> dict[str, Any]:
        return {"content": self.content, "reasoning": self.reasoning, "calls": self.calls}


def streamed(job: dict[str, Any]) -> dict[str, Any]:
    request = request_of(job)
    parser = open_parser(job, request)
    request = parser.adjust_request(request)
    folded = Folded()
    for text, ids, last in deltas(job, request):
        folded.add(parser.parse_delta(text, ids, request, job["prompt"], finished=last))
    return folded.answer()


def timed(job: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds that the output's deltas take, detokenizing left out: the median of `runs`, after one."""
    request = open_parser(job, request_of(job)).adjust_request(request_of(job))
    pieces = [*deltas(job, request)]
    took = []
    for _ in range(job["runs"] + 1):
        parser = open_parser(job, request)
        begin = time.process_time()
        for text, ids, last in pieces:
            parser.parse_delta(text, ids, request, job["prompt"], finished=last)
        took.append(time.process_time() - begin)
    return {"seconds": statistics.median(took[1:]), "deltas": len(pieces)}


def whole(job: dict[str, Any]) -> dict[str, Any]:
    request = request_of(job)
    parser = open_parser(job, request)
    request = parser.adjust_request(request)
    pieces = [*deltas(job, request)]
    text, ids = "".join(piece[0] for piece in pieces), [token for piece in pieces for token in piece[1]]
    reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
    made = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls or ()]
    return {"content": content or "", "reasoning": reasoning or "", "calls": made}


def apart(job: dict[str, Any]) -> dict[str, Any]:
    """Both parsers by themselves, over the whole text: as tools outside the endpoints use them."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    request, tokenizer = request_of(job), tokenizer_of(job["folder"])
    reasoning_parser = ReasoningParserManager.get_reasoning_parser(job["reasoning_parser"])(tokenizer)
    reasoning_parser.set_prompt_token_ids(job["prompt"])
    reasoning, content = reasoning_parser.extract_reasoning(job["text"], request)
    parsed = ToolParserManager.get_tool_parser(job["tool_parser"])(tokenizer, request.tools).extract_tool_calls(
        content or "", request
    )
    calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in parsed.tool_calls]
    return {"content": parsed.content or "", "reasoning": reasoning or "", "calls": calls}


def engine(job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM's engine learns of where reasoning ends: before the output, and token by token."""
    from vllm.reasoning import ReasoningParserManager

    parser = ReasoningParserManager.get_reasoning_parser(job["reasoning_parser"])(tokenizer_of(job["folder"]))
    ids: list[int] = [*job["prompt"]]
    ended = [parser.is_reasoning_end(ids)]
    for token in (token for group in job["groups"] for token in group):
        ids.append(token)
        ended.append(ended[-1] or parser.is_reasoning_end_streaming(ids, [token]))
    parser.set_prompt_token_ids(job["prompt"])
    return {"ended": ended, "reasoning_tokens": parser.count_reasoning_tokens(ids[len(job["prompt"]) :])}


def adjusted(job: dict[str, Any]) -> dict[str, Any]:
    """The request as the engine would get it."""
    request = request_of(job)
    parser = open_parser(job, request)
    if "level" in job:
        from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

        type(parser).tool_strict_level = ToolStrictLevel.from_name(job["level"])
    if job.get("prompt_unknown"):
        parser._prompt = None
    request = parser.adjust_request(request)
    outputs = request.structured_outputs
    tag = None if outputs is None else outputs.structural_tag
    if tag is not None:
        from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

        validate_xgrammar_grammar(request.to_sampling_params(8, {}))
    return {
        "tag": tag,
        "skip_special_tokens": request.skip_special_tokens,
        "spaces_between_special_tokens": request.spaces_between_special_tokens,
        "whole": request._grammar_from_parser,
        "reasoning_ended": request.resolve_reasoning_ended(parser, job["prompt"]),
    }


def rendered(job: dict[str, Any]) -> dict[str, Any]:
    """The history as vLLM's renderer is given it."""
    from types import SimpleNamespace

    from dovetail.plugins.vllm import repair

    if job["tool_parser"]:
        # Not the cached one: the parsers that vLLM combined last are those that are served.
        parser_class.__wrapped__(job["tool_parser"], job["reasoning_parser"], job["folder"], False)
    renderer = SimpleNamespace(tokenizer=tokenizer_of(job["folder"]))
    params = SimpleNamespace(chat_template_kwargs={"tools": job["tools"]})
    return {"messages": repair.Repairing._repaired(renderer, job["messages"], params)}


def named(job: dict[str, Any]) -> dict[str, Any]:
    """What is registered, and what stands for it."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tool_parsers import ToolParserManager

    tools = {name: ToolParserManager.get_tool_parser(name).__module__ for name in job["names"]}
    return {
        "tool_parsers": ToolParserManager.list_registered(),
        "reasoning_parsers": ReasoningParserManager.list_registered(),
        "modules": tools,
        "renderers": {mode: RENDERER_REGISTRY.load_renderer_cls(mode).__name__ for mode in ("hf", "deepseek_v32")},
    }


DOES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    function.__name__: function for function in (streamed, timed, whole, apart, engine, adjusted, rendered, named)
}


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    logging.disable(logging.WARNING)
    import vllm

    from dovetail.plugins.vllm.register import register

    register()
    register()  # vLLM may load a plugin twice
    print(json.dumps({"vllm": vllm.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = DOES[job["do"]](job)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "cause": f"{error.__cause__!r}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
