"""Writes a plan as `vllm serve` for vLLM 0.32 and 0.33, checked against their own parsers (make check-emitted)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.methods import CLEAN_LOOKUP
from dovetail.errors import PlanError
from dovetail.plan import hardware
from dovetail.plan.emit.command import Command, Remaining, ShellText, engine_parsers, shown, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import GATE, OPTIONS

VERSIONS = ("0.32", "0.33")

#: Method -> the members of --speculative-config that stand for it, where vLLM has another name for it.
_METHODS: Mapping[str, dict[str, Any]] = {"peagle": {"method": "eagle3", "parallel_drafting": True}}
#: Method -> the versions that know it, for methods that not all versions know.
_KNOWN = {"domino": (), "medusa": ("0.32",), "mlp_speculator": ("0.32",)}
_PARSERS = "vllm_parsers"  # the attribute of a format
#: Version -> the formats for which other versions have a parser, and this one has none.
_WITHOUT_PARSER: Mapping[str, tuple[str, ...]] = {"0.32": ("beam",)}
_MEMBER = "--speculative-config."
_ACCEPTANCE = "rejection_sample_method"
#: Dovetail's gate inside vLLM, and the member of --additional-config with its settings.
SCHEDULER, GATED = "dovetail.plugins.vllm.GatedScheduler", "dovetail"
# Methods of vLLM's older model runner, which also runs on CPUs.
_OLDER_RUNNER = ("suffix", "medusa", "mlp_speculator", "peagle")
_SM100 = 10  # the first number of the compute capability
_LIMITS = ("speculate_below_context", "speculate_up_to_batch")
#: Variables that neither version knows -> what became of them.
_REMOVED = {
    "VLLM_ENABLE_PCIE_ALLREDUCE": "only the recipe's patched build knows it, no released vLLM",
    "VLLM_TEST_FORCE_FP8_MARLIN": "removed; vLLM now has --linear-backend marlin and --moe-backend marlin",
    "VLLM_USE_V1": "removed; there is no other engine any more",
    "VLLM_FLASHINFER_MOE_BACKEND": "removed; vLLM now has --moe-backend flashinfer_trtllm and others",
    "VLLM_USE_FLASHINFER_MOE_FP4": "removed; vLLM now has --moe-backend flashinfer_trtllm and others",
    "VLLM_USE_FLASHINFER_MOE_FP8": "removed; vLLM now has --moe-backend flashinfer_trtllm and others",
}


def command(
    plan: Mapping[str, Setting[Any]], version: str | None = None, markers: tuple[str, str] | None = None
) -> Command:
    """The command `vllm serve` for the plan, for `version` of vLLM (default: the newest known).

    `markers`: what opens and closes the model's reasoning; default: the markers of the plan's format. vLLM needs them
    for requests with a budget of reasoning.
    Raises `PlanError` for a version older than those known. A newer one gets the newest known command, and a note.
    """
    flavour = flavour_of(version)
    remaining = Remaining(plan, "vLLM")
    if version is not None and not re.match(rf"v?{re.escape(flavour)}(?!\d)", version):
        remaining.notes.append(f"vLLM {version} is newer than any that was tried, so this command is for {flavour}")
    start = ("vllm", "serve", remaining.take("target"))
    markers = markers or _markers(remaining.peek("format"))
    older_runner = remaining.peek("method") in _OLDER_RUNNER or "+cpu" in (version or "")
    on_cpu = "+cpu" in (version or "")
    speculation, gate = _speculation(remaining, flavour, older_runner=older_runner, on_cpu=on_cpu)
    if gate.get("gate") == "measured":
        gate |= _acceptance(plan)
    if remaining.peek("grammar_backend") == "guidance" and engine_parsers(remaining.peek("format"), _PARSERS):
        remaining.notes.append(
            "guidance is for `dovetail serve --engine URL` in front of vLLM: with it, vLLM's own chat endpoint refuses "
            "requests with tool_choice `required` or `strict`, whose grammars are for xgrammar"
        )
    arguments: list[tuple[str, ...]] = []
    for option in OPTIONS:
        flag = option.engine_names.get("vllm", "")
        if option.name == "format":
            arguments += _parsers(remaining, flavour)
        elif flag.startswith("--") and not flag.startswith(_MEMBER):
            value = remaining.take(option.name)
            if value is not None:
                arguments.append(_argument(flag, value, flavour))
    if markers is not None and speculation and older_runner:
        # It would end reasoning a second time where the drafts of its last step have ended it.
        remaining.notes.append("no budgets of reasoning: vLLM's older model runner cannot keep to them with drafts")
    elif markers is not None:
        reasoning = {"reasoning_start_str": markers[0], "reasoning_end_str": markers[1]}
        arguments.append(("--reasoning-config", json.dumps(reasoning)))
    if speculation:
        arguments.append(("--speculative-config", json.dumps(speculation)))
    if gate:
        arguments += [("--scheduler-cls", SCHEDULER), ("--additional-config", json.dumps({GATED: gate}))]
        remaining.notes.append(f"{SCHEDULER} is part of Dovetail: `pip install dovetail[vllm]` where vLLM runs")
    arguments += [(word,) for word in shlex.split(remaining.take("engine_args") or "")]
    settings = variables(remaining, _REMOVED, "")
    key = remaining.take("api_key_file")
    if key is not None:
        # Not --api-key: every user of the machine can read a command's words.
        settings["VLLM_API_KEY"] = ShellText(f'"$(cat {shlex.quote(key)})"')
    return Command(start=start, arguments=tuple(arguments), variables=settings, notes=remaining.finish())


def flavour_of(version: str | None) -> str:
    """The newest of `VERSIONS` that is not newer than `version`. Raises `PlanError` if all of them are newer."""
    if version is None:
        return VERSIONS[-1]
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None:
        raise PlanError(f"{version!r} is not a version of vLLM: give one like {VERSIONS[-1]}")
    asked = (int(match[1]), int(match[2]))
    known = [name for name in VERSIONS if tuple(map(int, name.split("."))) <= asked]
    if not known:
        raise PlanError(f"vLLM {version} is older than the versions that commands can be for: {', '.join(VERSIONS)}")
    return known[-1]


def _argument(flag: str, value: Any, flavour: str) -> tuple[str, ...]:
    if value is True:
        return (flag,)
    if value is False:
        # 0.33 negates --enable-x by --disable-x; other flags are negated by --no-x in both versions.
        if flag.startswith("--enable-") and flavour != "0.32":
            return ("--disable-" + flag.removeprefix("--enable-"),)
        return ("--no-" + flag.removeprefix("--"),)
    return (flag, shown(value))


def _markers(format: str | None) -> tuple[str, str] | None:
    """What opens and closes a format's reasoning; None if no single control token closes it."""
    from dovetail.formats.registry import FAMILIES  # imports every family, which most plans do not need

    family = FAMILIES.get(format or "")
    return None if family is None else family().closable_markers


def _parsers(remaining: Remaining, flavour: str) -> list[tuple[str, ...]]:
    if remaining.peek("format") in _WITHOUT_PARSER.get(flavour, ()):
        remaining.leave_out("format", f"vLLM {flavour} has no parser for it")
    flags = {"--tool-call-parser": "calls", "--reasoning-parser": "reasoning"}
    arguments = remaining.take_parsers(_PARSERS, flags)
    if len(arguments) < len(flags):
        return [("--enable-auto-tool-choice",), *arguments] if arguments else []
    # enable_in_reasoning is left off, although Dovetail's grammars contain the reasoning: vLLM's own grammars do not,
    # so a forced call would be written where vLLM reads reasoning.
    remaining.notes.append(
        "--reasoning-parser is for vLLM's own chat endpoint: leave it out for `dovetail serve --engine URL` in front "
        "of vLLM, or use --strict off there"
    )
    return [("--enable-auto-tool-choice",), *arguments]


def _speculation(
    remaining: Remaining, flavour: str, *, older_runner: bool, on_cpu: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members of --speculative-config and the settings of Dovetail's gate; empty if there is no such thing."""
    method, tokens = remaining.peek("method"), remaining.peek("draft_tokens")
    members = {
        o.name: o.engine_names["vllm"].removeprefix(_MEMBER)
        for o in OPTIONS
        if o.engine_names.get("vllm", "").startswith(_MEMBER)
    }
    why = None
    if method is None and remaining.peek("drafter") is None:
        why = "nothing drafts"
    elif tokens == 0:
        why = "draft_tokens is 0"
    elif flavour not in _KNOWN.get(method, VERSIONS):
        why = f"vLLM {flavour} does not know the method {method}"
    if why is not None:
        if tokens == 0:
            remaining.take("draft_tokens")
        for name in (*members, *GATE):
            remaining.leave_out(name, why)
        return {}, {}
    if remaining.peek("local_argmax") and remaining.peek("draft_sampling") == "probabilistic":
        remaining.leave_out("draft_sampling", "vLLM refuses it with local_argmax, which never has whole distributions")
    if method != "ngram":
        remaining.leave_out("prompt_lookup_min", "only method ngram uses it")
    config = {member: remaining.take(name) for name, member in members.items()}
    config |= _METHODS.get(method, {})
    if method == "ngram":
        shortest = config["prompt_lookup_min"] or CLEAN_LOOKUP
        config |= {"prompt_lookup_min": shortest, "prompt_lookup_max": max(shortest, CLEAN_LOOKUP)}
        if not on_cpu:
            config["method"] = "ngram_gpu"
            remaining.notes.append(
                "method ngram runs as vLLM's ngram_gpu: lookup on the CPU takes asynchronous scheduling away, a third "
                "of the speed without drafts (Llama 1B, batch 1, one H100)"
            )
    sampled = config.get("draft_sample_method") == "probabilistic"
    if sampled and not older_runner and config.get(_ACCEPTANCE) is None:
        config[_ACCEPTANCE] = "block"
        remaining.notes.append(
            "rejection_sample_method block: the drafts of a step are tested together, which accepts as many or more "
            "and changes no distribution; --draft-acceptance standard tests them one by one"
        )
    gate = _gate(remaining)
    config |= _adaptive(remaining, method, gated=bool(gate))
    most, measured = remaining.peek("max_draft_tokens"), gate.get("gate") == "measured"
    if measured or most == tokens:
        config["num_speculative_tokens"] = remaining.take("max_draft_tokens") or tokens
        if measured and tokens is not None and config["num_speculative_tokens"] != tokens:
            gate["draft_tokens"] = tokens  # what the gate begins with
    remaining.leave_out("max_draft_tokens", "only a measured gate changes the number of drafts")
    return {member: value for member, value in config.items() if value is not None}, gate


def _adaptive(remaining: Remaining, method: str | None, *, gated: bool) -> dict[str, Any]:
    """vLLM's own choice of drafts to verify, for DSpark on SM100 without Dovetail's gate."""
    gpus = remaining.peek("gpus")
    if method != "dspark" or gpus is None or gpus == "auto":
        return {}
    capability = hardware.parse(gpus).gpu.capability
    if capability is None or capability[0] != _SM100:
        return {}
    if gated:
        remaining.notes.append(
            "Dovetail's gate in place of enable_adaptive_verification: vLLM's verifies fewer drafts where DSpark is "
            "not confident, but still drafts in every step; the gate stops drafting where it does not pay. --gate off "
            "takes vLLM's"
        )
        return {}
    remaining.notes.append(
        "enable_adaptive_verification: vLLM verifies as many of DSpark's drafts as its confidence allows. It does not "
        "stop drafting where that does not pay, which --gate measured does"
    )
    return {"enable_adaptive_verification": True}


def _gate(remaining: Remaining) -> dict[str, Any]:
    """The settings of `GatedScheduler`; empty if nothing is gated, so that vLLM drafts as much at every step."""
    measured = remaining.take("gate") == "measured"
    limits = {name: remaining.take(name) for name in _LIMITS}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    return {"gate": "measured" if measured else "off", **limits} if measured or limits else {}


def _acceptance(plan: Mapping[str, Setting[Any]]) -> dict[str, float]:
    """The gate's setting for what the drafter's recipe has measured; empty if it has measured nothing."""
    from dovetail.plan.defaults import expected_acceptance  # reads recipes, which show settings as commands do

    acceptance = expected_acceptance(plan)
    return {} if acceptance is None else {"acceptance": round(acceptance, 4)}
