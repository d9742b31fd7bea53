"""Checks `engine_args`, the user's further options for `vllm serve` and `llama-server`.

An option that Dovetail sets itself is refused: the plan would show and calculate with another value than the engine
uses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple

from dovetail.errors import PlanError
from dovetail.plan.engines import NAMES
from dovetail.plan.option import Option
from dovetail.plan.options import OPTIONS

_UNREACHABLE = "with {} Dovetail could not reach the engine"
_WITHOUT_TOKENIZER = "with {} vLLM could not constrain answers to a grammar"
_GATE = "Dovetail's gate enters vLLM through {}: use --gate and its limits"
_ANOTHER_MODEL = "{} names a model: give it as the first argument instead"
_NO_TEXT = "with {} llama.cpp would not complete text"


class _Engine(NamedTuple):
    """Flag -> why it is refused; other names of flags; whether the beginning of a flag's name stands for it."""

    refused: Mapping[str, str]
    aliases: Mapping[str, str]
    beginnings: bool = False


def _flags_of(option: Option, engine: str) -> tuple[str, ...]:
    """The engine's flag for the setting, and the two flags that negate it."""
    flag = option.engine_names.get(engine, "").partition(".")[0]
    return (flag, f"--no-{flag[2:]}", flag.replace("--enable-", "--disable-")) if flag.startswith("--") else ()


def _settings(engine: str) -> dict[str, str]:
    use = "use the setting {} instead of {{}}"
    return {flag: use.format(option.flags[0]) for option in OPTIONS for flag in _flags_of(option, engine)}


def _use(**settings: tuple[str, ...]) -> dict[str, str]:
    return {
        flag: f"use the setting --{name.replace('_', '-')} instead of {{}}"
        for name, flags in settings.items()
        for flag in flags
    }


_ENGINES: Mapping[str, _Engine] = {
    "vllm": _Engine(
        # "--" ends the options, and Dovetail's own options come last.
        {
            **_settings("vllm"),
            **dict.fromkeys(("--", "--uds", "--api-key", "--root-path", "--headless", "--grpc"), _UNREACHABLE),
            **dict.fromkeys(("--config", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"), _UNREACHABLE),
            **dict.fromkeys(("--ssl-cert-reqs", "--ssl-ciphers"), _UNREACHABLE),
            "--data-parallel-multi-port-external-lb": _UNREACHABLE,
            **dict.fromkeys(("--skip-tokenizer-init", "--tokens-only"), _WITHOUT_TOKENIZER),
            **dict.fromkeys(("--scheduler-cls", "--additional-config"), _GATE),
            "--reasoning-parser": "with {} vLLM would constrain an answer only after its reasoning",
            "--model": _ANOTHER_MODEL,
        },
        {
            "-tp": "--tensor-parallel-size",
            "-pp": "--pipeline-parallel-size",
            "-dp": "--data-parallel-size",
            "-dcp": "--decode-context-parallel-size",
            "-q": "--quantization",
            "-sc": "--speculative-config",
            "--spec-method": "--speculative-config",
            "--spec-model": "--speculative-config",
            "--spec-tokens": "--speculative-config",
            "-dpm": "--data-parallel-multi-port-external-lb",
        },
        beginnings=True,
    ),
    "llama.cpp": _Engine(
        {
            **_settings("llama.cpp"),
            **_use(
                context=("--ctx-size",),
                kv_cache_dtype=("--cache-type-k", "--cache-type-v"),
                method=("--spec-type",),
                drafter=("--spec-draft-model",),
                draft_tokens=("--spec-draft-n-max", "--spec-ngram-simple-size-m"),
            ),
            **dict.fromkeys(("--host", "--port", "--api-key", "--api-key-file", "--api-prefix"), _UNREACHABLE),
            **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _UNREACHABLE),
            **dict.fromkeys(("--model", "--model-url", "--hf-repo", "--hf-file", "--docker-repo"), _ANOTHER_MODEL),
            **dict.fromkeys(("--models-dir", "--models-preset"), _ANOTHER_MODEL),
            **dict.fromkeys(("--embedding", "--embeddings", "--reranking", "--rerank"), _NO_TEXT),
        },
        {
            "-m": "--model",
            "-mu": "--model-url",
            "-hf": "--hf-repo",
            "-hfr": "--hf-repo",
            "-hff": "--hf-file",
            "-dr": "--docker-repo",
            "-c": "--ctx-size",
            "-np": "--parallel",
            "-b": "--batch-size",
            "-t": "--threads",
            "-ngl": "--gpu-layers",
            "--n-gpu-layers": "--gpu-layers",
            "-ctk": "--cache-type-k",
            "-ctv": "--cache-type-v",
            "-md": "--spec-draft-model",
            "--model-draft": "--spec-draft-model",
            "--draft": "--spec-draft-n-max",
            "--draft-n": "--spec-draft-n-max",
            "--draft-max": "--spec-draft-n-max",
        },
    ),
}


def check(text: str, engine: str = "vllm") -> None:
    """Check the options in `text`, which is split as a shell would. Raises `PlanError` for one that is refused."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PlanError(f"a shell could not read it: {error}") from error
    if words and not words[0].startswith("-"):
        raise PlanError(f"it must start with an option of {NAMES[engine]}, not with {words[0]!r:.40}")
    for word in words:
        flag = word.partition("=")[0].partition(".")[0].replace("_", "-")
        reason = _ENGINES[engine].refused.get(_full_name(flag, _ENGINES[engine]))
        if reason is not None:
            raise PlanError(reason.format(flag))


def _full_name(flag: str, engine: _Engine) -> str:
    """The refused option that `flag` stands for, or `flag`."""
    if not engine.beginnings:
        return engine.aliases.get(flag, flag)
    if flag.startswith("-q"):
        return engine.aliases["-q"]  # possibly with its value, as in -qfp8
    names = (*engine.refused, *engine.aliases)
    if flag.startswith("-") and flag not in (*names, "-", "-dc"):  # -dc is another option's whole name
        flag = next((name for name in names if name.startswith(flag)), flag)
    return engine.aliases.get(flag, flag)
