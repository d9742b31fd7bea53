"""The other engines, each set up as its server sets up its parsers, in every way that suits a request.

A request comes in two modes: its answer may reason, or its prompt has closed the reasoning. In the second an engine may
run with its reasoning parser or without. In either, the way that reads more well-formed answers right counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.reading import worker_jobs
from benchmarks.reading.deltas import Cutter, Delta
from benchmarks.reading.families import FAMILIES, Family, Parsers, as_written
from benchmarks.reading.workers import READERS, Worker
from tests.drift.corpus import Case

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "dynamo": "Dynamo"}
#: Parsers of these versions that suit a format as well as the named ones.
_MORE = {
    ("vllm", "qwen3"): (Parsers("qwen3_json", "qwen3"),),
    ("vllm", "qwen3_coder"): (Parsers("qwen3_coder", "qwen3"),),
    ("vllm", "lfm2"): (Parsers("lfm2"),),
    ("vllm", "minimax_m3"): (Parsers("minimax_m3", "minimax_m3"),),
    ("vllm", "muse"): (Parsers("muse", "muse"),),
    ("vllm", "granite"): (Parsers("granite", "granite_thinking_parser"),),
    ("sglang", "qwen3"): (Parsers("qwen25", "qwen3"),),
    ("sglang", "qwen3_coder"): (Parsers("qwen3_coder", "qwen3"),),
}
#: Dynamo's parsers.
_DYNAMO = {
    "kimi_k2": (Parsers("kimi_k2"),),
    "kimi_k2_thinking": (Parsers("kimi_k2", "kimi_k2"), Parsers("kimi_k2", "kimi")),
    "kimi_k25": (Parsers("kimi_k25", "kimi_k25"), Parsers("kimi_k2", "kimi_k25")),
    "kimi_k3": (Parsers("kimi_k3", "kimi_k3"),),
    "deepseek_v3": (Parsers("deepseek_v3"),),
    "deepseek_v31": (Parsers("deepseek_v3_1", "deepseek_v3_1"), Parsers("deepseek_v3_1", "deepseek_r1")),
    "deepseek_v32": (Parsers("deepseek_v3_2", "deepseek_v3_2"), Parsers("deepseek_v3_2", "deepseek_r1")),
    "deepseek_v4": (Parsers("deepseek_v4", "deepseek_v4"),),
    "deepseek_v41": (Parsers("deepseek_v41", "deepseek_v41"),),
    "hermes": (Parsers("hermes"), Parsers("qwen25")),
    "qwen3": (Parsers("hermes", "qwen3"), Parsers("qwen3", "qwen3")),
    "qwen3_coder": (Parsers("qwen3_coder", "qwen3"), Parsers("qwen3_coder", "qwen3_coder")),
    "nemotron_v3": (Parsers("qwen3_coder", "nemotron_v3"), Parsers("nemotron_nano", "nemotron3")),
    "glm45": (Parsers("glm45", "glm45"),),
    "glm47": (Parsers("glm47", "glm47"), Parsers("glm47", "glm45")),
    "minimax_m2": (Parsers("minimax_m2", "minimax_m2"), Parsers("minimax_m2", "minimax_append_think")),
    "minimax_m3": (Parsers("minimax_m3", "minimax_m3"),),
    "gemma4": (Parsers("gemma4", "gemma4"),),
    "llama3_json": (Parsers("llama3_json"),),
    "mistral": (Parsers("mistral", "mistral"),),
    "harmony": (Parsers("harmony", "gpt_oss"),),
    "pythonic": (Parsers("pythonic"),),
    "jamba": (Parsers("jamba"),),
    "phi4_mini": (Parsers("phi4"),),
    "muse": (Parsers("muse", "muse"),),
}
#: llama.cpp's copy of the format's chat template, which tells its parser what to read.
_TEMPLATES = {
    "kimi_k2": "moonshotai-Kimi-K2",
    "kimi_k2_thinking": "Kimi-K2-Thinking",
    "kimi_k3": "Kimi-K3",
    "deepseek_v31": "deepseek-ai-DeepSeek-V3.1",
    "deepseek_v32": "deepseek-ai-DeepSeek-V3.2",
    "deepseek_v4": "deepseek-ai-DeepSeek-V4",
    "hermes": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3_coder": "Qwen3-Coder",
    "nemotron_v3": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "seed_oss": "ByteDance-Seed-OSS",
    "step3p5": "StepFun3.5-Flash",
    "solar_open": "upstage-Solar-Open-100B",
    "glm45": "GLM-4.6",
    "glm47": "GLM-4.7-Flash",
    "minimax_m2": "MiniMax-M2",
    "minimax_m3": "MiniMax-M3",
    "minicpm5": "openbmb-MiniCPM5-1B",
    "gemma4": "google-gemma-4-31B-it",
    "llama3_json": "meta-llama-Llama-3.3-70B-Instruct",
    "mistral": "mistralai-Ministral-3-14B-Reasoning-2512",
    "harmony": "openai-gpt-oss-120b",
    "lfm2": "LFM2-8B-A1B",
    "granite": "ibm-granite-granite-3.3-2B-Instruct",
    "command_a": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "command_4": "Cohere2MoE",
    "functionary": "meetkai-functionary-medium-v3.2",
    "muse": "muse-glimmer",
    "gigachat3": "GigaChat3-10B-A1.8B",
}
#: The same for answers that reason, where those have a template of their own.
_REASONING_TEMPLATES = {"qwen3_coder": "Qwen3.5-4B"}
#: What ends a turn: engines stop there and do not show it to their parsers.
_STOPS = ("<|return|>", "<|flush|>", "<|calls|>", "<|message_sep|>\n\n")
#: CPU seconds for all outputs of a job.
_LIMIT = 120.0

#: What an engine makes of the outputs of some cases: as `corpus.read`, or {"error": why}.
Readings = list[dict[str, Any]]


def reasons(case: Case) -> bool:
    """Whether the answer may reason: the prompt has opened a block, or the output does."""
    tags = dovetail.format(case.format).reasoning_tags
    return (
        case.thinking or bool(case.meant["reasoning"]) or (tags is not None and case.text.strip().startswith(tags[0]))
    )


class Peer:
    """An engine with its worker."""

    def __init__(self, engine: str, environments: Path) -> None:
        self.engine = engine
        self._folder = environments / engine
        command: list[str | Path] | None = {
            "llamacpp": [self._folder / "worker"],
            "dynamo": [self._folder / "bin/python", "-m", "benchmarks.drift.worker_dynamo"],
        }.get(engine)
        self._worker = Worker(engine, environments, command)
        self.version = next(version for name, version in self._worker.versions.items() if name != "python")

    def reads(self, format_name: str) -> bool:
        """Whether the engine has a parser for the format."""
        return format_name in _TEMPLATES if self.engine == "llamacpp" else bool(_parsers(self.engine, format_name))

    def ways(self, cases: Sequence[Case]) -> Iterator[Readings]:
        """What the engine reads in these cases, which share everything but their outputs, in each way to set it up."""
        first = cases[0]
        thinks = reasons(first)
        if self.engine == "llamacpp":
            yield from self._by_template(cases, thinks)
            return
        parsers = _parsers(self.engine, first.format)
        if not thinks:
            parsers += [Parsers(pair.tools, None, pair.ids) for pair in parsers if pair.reasoning is not None]
        for pair in dict.fromkeys(parsers):
            job = (_text_job if self.engine == "dynamo" else _job)(self.engine, cases, pair, thinks)
            yield self._ask(job, len(cases))

    def _by_template(self, cases: Sequence[Case], thinks: bool) -> Iterator[Readings]:
        first = cases[0]
        name = _TEMPLATES[first.format]
        if thinks:
            name = _REASONING_TEMPLATES.get(first.format, name)
        job = {
            "template": str(self._folder / "templates" / f"{name}.jinja"),
            "tools": list(first.tools),
            "thinks": thinks,
            "limit": _LIMIT,
        }
        texts = [_shown(case) for case in cases]
        yield self._ask(job | {"texts": texts}, len(cases))
        closed = dovetail.format(first.format).reader_type.think_end
        if not thinks and closed:  # templates that open reasoning whatever is asked: the answer closes it at once
            yield self._ask(job | {"texts": [closed + text for text in texts]}, len(cases))

    def _ask(self, job: dict[str, Any], count: int) -> Readings:
        answer = self._worker.ask(job)
        found: Readings | None = answer.get("readings")
        return found if found is not None else [{"error": answer.get("error", "it takes too long")}] * count

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def _parsers(engine: str, format_name: str) -> list[Parsers]:
    """The engine's parsers for the format, as both the benchmark of reading and the format name them."""
    if engine == "dynamo":
        return list(_DYNAMO.get(format_name, ()))
    family = FAMILIES.get(format_name)
    found = [] if family is None else [getattr(family, engine)]
    named = getattr(dovetail.format(format_name), f"{engine}_parsers")
    if named is not None and not any(pair.ids for pair in found):  # an engine's own path has no parser to name
        found.append(Parsers(named.calls, named.reasoning))
    return list(dict.fromkeys([*found, *_MORE.get((engine, format_name), ())]))


def _opening(case: Case, thinks: bool) -> str:
    """What the prompt ends in: an open block of reasoning, or an empty one where the prompt closes it."""
    fmt = dovetail.format(case.format)
    if case.thinking:
        return fmt.reader_type.think
    return "" if thinks or fmt.reasoning == "none" else fmt.reader_type.think + fmt.reader_type.think_end


def _job(engine: str, cases: Sequence[Case], parsers: Parsers, thinks: bool) -> dict[str, Any]:
    """The job of reading these outputs, a token at a time."""
    first = cases[0]
    opening = _opening(first, thinks)
    family = dataclasses.replace(_family(first.format), opening=opening, thinks=thinks, vllm=parsers, sglang=parsers)
    cutter = Cutter(family, "words")
    outputs: list[tuple[list[Delta], None]] = [(cutter.tokens(_shown(case)), None) for case in cases]
    if engine == "vllm" and first.finish == "stop":  # the token that ends the turn comes alone, too
        for deltas, _ in outputs:
            deltas.append(("", []))
    job = worker_jobs.common(family, cutter, first.tools, limit=_LIMIT) | {
        "task": "readings",
        "outputs": outputs,
        "options": {"thinking": thinks, "enable_thinking": thinks},
        "force_reasoning": thinks,
        "cut_off": first.finish == "length",
    }
    reader = next(reader for reader in READERS if reader.engine == engine)
    return worker_jobs.for_reader(reader, job)


def _text_job(engine: str, cases: Sequence[Case], parsers: Parsers, thinks: bool) -> dict[str, Any]:
    """The same for a server that makes the tokens itself."""
    first = cases[0]
    return {
        "texts": [_shown(case) for case in cases],
        "tools": list(first.tools),
        "control": list(_family(first.format).control),
        "opening": _opening(first, thinks),
        "thinks": thinks,
        "tool_call_parser": parsers.tools,
        "reasoning_parser": parsers.reasoning,
        "cut_off": first.finish == "length",
        "limit": _LIMIT,
    }


def _family(name: str) -> Family:
    """The family, with all control tokens of the format and the tags of its reasoning."""
    family = FAMILIES.get(name) or as_written(name)
    kind = dovetail.format(name).reader_type
    control = dict.fromkeys((*family.control, *kind.controls))
    control.pop(family.end, None)
    tags = filter(None, (kind.think, kind.think.strip(), kind.think_end, kind.think_end.strip()))
    return dataclasses.replace(family, control=tuple(control), blocks=tuple(dict.fromkeys((*family.blocks, *tags))))


def _shown(case: Case) -> str:
    """The output as a parser gets it."""
    stop = next((stop for stop in _STOPS if case.text.endswith(stop)), "")
    return case.text.removesuffix(stop)
