"""Checks `engine_args`, the user's further options for `vllm serve`.

An option that Dovetail sets itself is refused: the plan would show and calculate with another value than vLLM uses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from dovetail.errors import PlanError
from dovetail.plan.option import Option
from dovetail.plan.options import OPTIONS

_UNREACHABLE = "with {} Dovetail could not reach vLLM"
_WITHOUT_TOKENIZER = "with {} vLLM could not constrain answers to a grammar"
_GATE = "Dovetail's gate enters vLLM through {}: use --gate and its limits"
#: vLLM's other names for its options.
_ALIASES = {
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
}


def _flags_of(option: Option) -> tuple[str, ...]:
    """vLLM's flag for the setting, and the two flags that negate it."""
    flag = option.engine_names.get("vllm", "").partition(".")[0]
    return (flag, f"--no-{flag[2:]}", flag.replace("--enable-", "--disable-")) if flag.startswith("--") else ()


#: Flag -> why it is refused. "--" ends the options, and Dovetail's own options come last.
_REFUSED: Mapping[str, str] = {
    **{flag: f"use the setting {option.flags[0]} instead of {{}}" for option in OPTIONS for flag in _flags_of(option)},
    **dict.fromkeys(("--", "--uds", "--api-key", "--root-path", "--headless", "--grpc", "--config"), _UNREACHABLE),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs"), _UNREACHABLE),
    **dict.fromkeys(("--ssl-ciphers", "--data-parallel-multi-port-external-lb"), _UNREACHABLE),
    **dict.fromkeys(("--skip-tokenizer-init", "--tokens-only"), _WITHOUT_TOKENIZER),
    **dict.fromkeys(("--scheduler-cls", "--additional-config"), _GATE),
    "--reasoning-parser": "with {} vLLM would constrain an answer only after its reasoning",
    "--model": "give the model as the first argument instead of {}",
}


def check(text: str) -> None:
    """Check the options in `text`, which is split as a shell would. Raises `PlanError` for one that is refused."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PlanError(f"a shell could not read it: {error}") from error
    if words and not words[0].startswith("-"):
        raise PlanError(f"it must start with an option of vLLM, not with {words[0]!r:.40}")
    for word in words:
        flag = word.partition("=")[0].partition(".")[0].replace("_", "-")
        reason = _REFUSED.get(_full_name(flag))
        if reason is not None:
            raise PlanError(reason.format(flag))


def _full_name(flag: str) -> str:
    """The refused option that `flag` stands for, or `flag`. vLLM's parser accepts the beginning of an option's name."""
    if flag.startswith("-q"):
        return _ALIASES["-q"]  # possibly with its value, as in -qfp8
    names = (*_REFUSED, *_ALIASES)
    if flag.startswith("-") and flag not in (*names, "-", "-dc"):  # -dc is another option's whole name
        flag = next((name for name in names if name.startswith(flag)), flag)
    return _ALIASES.get(flag, flag)
