"""A plan as `vllm serve`, for vLLM 0.32 and 0.33 (checked against their own argument parsers: make check-emitted)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from dovetail.errors import PlanError
from dovetail.plan.emit.command import Account, Command, Shell, engine_parsers, shown, variables
from dovetail.plan.layers import Setting
from dovetail.plan.methods import CLEAN_LOOKUP
from dovetail.plan.options import GATE, OPTIONS

VERSIONS = ("0.32", "0.33")

#: Method -> what vLLM calls it, and what else it then wants.
_METHODS: Mapping[str, dict[str, Any]] = {"peagle": {"method": "eagle3", "parallel_drafting": True}}
#: Method -> the versions that know it, where that is not all of them.
_KNOWN = {"domino": (), "medusa": ("0.32",), "mlp_speculator": ("0.32",)}
_PARSERS = "vllm_parsers"  # the attribute of a format
_MEMBER = "--speculative-config."
#: Dovetail's gate inside vLLM, and the member of --additional-config that it reads.
SCHEDULER, GATED = "dovetail.plugins.vllm.GatedScheduler", "dovetail"
# Methods that vLLM's older model runner drafts by: told of several lengths it gives up whole graphs of a step.
_NO_LENGTHS = ("suffix", "medusa", "mlp_speculator", "peagle")
#: Variables that neither version knows -> why they are not there.
_GONE = {
    "VLLM_ENABLE_PCIE_ALLREDUCE": "no vLLM that was released knows it, only the patched build of the source does",
    "VLLM_TEST_FORCE_FP8_MARLIN": "gone; vLLM now takes --linear-backend marlin and --moe-backend marlin",
    "VLLM_USE_V1": "gone; there is no other engine any more",
    "VLLM_USE_FLASHINFER_MOE_FP4": "gone; vLLM now takes --moe-backend flashinfer_trtllm and others",
    "VLLM_USE_FLASHINFER_MOE_FP8": "gone; vLLM now takes --moe-backend flashinfer_trtllm and others",
}


def command(plan: Mapping[str, Setting[Any]], version: str | None = None) -> Command:
    """`vllm serve` for the plan; `version` of vLLM is the newest known unless said.

    Raises `PlanError` for a version older than those known; a newer one is taken for the newest known, as a note says.
    """
    flavour = flavour_of(version)
    account = Account(plan, "vLLM")
    if version is not None and not re.match(rf"v?{re.escape(flavour)}(?!\d)", version):
        account.notes.append(f"vLLM {version} is newer than any that was tried, so this is written for {flavour}")
    start = ("vllm", "serve", account.take("target"))
    speculation, gate = _speculation(account, flavour)
    if account.peek("grammar_backend") == "guidance" and engine_parsers(account.peek("format") or "", _PARSERS):
        account.notes.append(
            "guidance is for `dovetail serve --engine URL` in front of vLLM: vLLM's own chat endpoint refuses with it "
            "what its tool parsers make of `required` and `strict`, which is for xgrammar"
        )
    arguments: list[tuple[str, ...]] = []
    for option in OPTIONS:
        word = option.engine_names.get("vllm", "")
        if option.name == "format":
            arguments += _language(account)
        elif word.startswith("--") and not word.startswith(_MEMBER):
            value = account.take(option.name)
            if value is not None:
                arguments.append(_argument(word, value, flavour))
    if speculation:
        arguments.append(("--speculative-config", json.dumps(speculation)))
    if gate:
        arguments += [("--scheduler-cls", SCHEDULER), ("--additional-config", json.dumps({GATED: gate}))]
        account.notes.append(f"{SCHEDULER} is Dovetail's: `pip install dovetail[vllm]` where vLLM runs")
    arguments += [(word,) for word in shlex.split(account.take("engine_args") or "")]
    settings = variables(account, _GONE, "")
    key = account.take("api_key_file")
    if key is not None:
        # Not --api-key: everybody on the machine can read the words of a command.
        settings["VLLM_API_KEY"] = Shell(f'"$(cat {shlex.quote(key)})"')
    return Command(start=start, arguments=tuple(arguments), variables=settings, notes=account.close())


def flavour_of(version: str | None) -> str:
    """The newest of `VERSIONS` that is no newer than `version`. Raises `PlanError` if they all are."""
    if version is None:
        return VERSIONS[-1]
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None:
        raise PlanError(f"{version!r} is no version of vLLM: say one like {VERSIONS[-1]}")
    asked = (int(match[1]), int(match[2]))
    known = [name for name in VERSIONS if tuple(map(int, name.split("."))) <= asked]
    if not known:
        raise PlanError(f"vLLM {version} is older than any that a command can be written for: {', '.join(VERSIONS)}")
    return known[-1]


def _argument(word: str, value: Any, flavour: str) -> tuple[str, ...]:
    if value is True:
        return (word,)
    if value is False:
        # 0.33 has --disable-x beside --enable-x; what has no such pair is negated by --no-x in both.
        if word.startswith("--enable-") and flavour != "0.32":
            return ("--disable-" + word.removeprefix("--enable-"),)
        return ("--no-" + word.removeprefix("--"),)
    return (word, shown(value))


def _language(account: Account) -> list[tuple[str, ...]]:
    parsers = account.take_parsers(_PARSERS)
    if parsers is None:
        return []
    words: list[tuple[str, ...]] = [("--enable-auto-tool-choice",), ("--tool-call-parser", parsers.calls)]
    if parsers.reasoning is None:
        return words
    # Not enable_in_reasoning, which is what Dovetail would want: vLLM's own grammars have no reasoning in them, so that
    # with it a forced call would stand where reasoning is read.
    account.notes.append(
        "--reasoning-parser is for vLLM's own chat endpoint: in front of vLLM, `dovetail serve --engine URL` wants it "
        "left out, or --strict off"
    )
    return [*words, ("--reasoning-parser", parsers.reasoning)]


def _speculation(account: Account, flavour: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members of --speculative-config and what Dovetail's gate is told; none where nothing drafts, or gates."""
    method, tokens = account.peek("method"), account.peek("draft_tokens")
    members = {
        o.name: o.engine_names["vllm"].removeprefix(_MEMBER)
        for o in OPTIONS
        if o.engine_names.get("vllm", "").startswith(_MEMBER)
    }
    why = None
    if method is None and account.peek("drafter") is None:
        why = "nothing drafts"
    elif tokens == 0:
        why = "no tokens are to be drafted"
    elif flavour not in _KNOWN.get(method, VERSIONS):
        why = f"vLLM {flavour} does not know the method {method}"
    if why is not None:
        if tokens == 0:
            account.take("draft_tokens")
        for name in (*members, *GATE):
            account.leave(name, why)
        return {}, {}
    if account.peek("local_argmax") and account.peek("draft_sampling") == "probabilistic":
        account.leave("draft_sampling", "vLLM refuses it beside local_argmax, which never sees whole distributions")
    if method != "ngram":
        account.leave("prompt_lookup_min", "only n-gram lookup has one")
    config = {member: account.take(name) for name, member in members.items()}
    config |= _METHODS.get(method, {})
    if method == "ngram":
        shortest = config["prompt_lookup_min"] or CLEAN_LOOKUP
        config |= {"prompt_lookup_min": shortest, "prompt_lookup_max": max(shortest, CLEAN_LOOKUP)}
    gate = _gate(account)
    most, measured = account.peek("max_draft_tokens"), gate.get("gate") == "measured"
    if measured or most == tokens:
        config["num_speculative_tokens"] = account.take("max_draft_tokens") or tokens
    account.leave("max_draft_tokens", "only a gate that measures drafts more or less than draft_tokens")
    if gate and method not in _NO_LENGTHS and account.peek("data_parallel_size") in (None, 1):
        config |= _lengths(config["num_speculative_tokens"], account.peek("max_batch"), measured=measured)
    return {member: value for member, value in config.items() if value is not None}, gate


def _gate(account: Account) -> dict[str, Any]:
    """What `GatedScheduler` is told; nothing where there is nothing to gate: vLLM drafts as much at every step."""
    measured = account.take("gate") == "measured"
    limits = {name: account.take(name) for name in ("speculate_below_context", "speculate_up_to_batch")}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    return {"gate": "measured" if measured else "off", **limits} if measured or limits else {}


def _lengths(tokens: int | None, batch: int | None, *, measured: bool) -> dict[str, Any]:
    """All lengths that the gate chooses from, so that vLLM captures the graphs of each for batches of any size.

    Which batch is to have which length is of no account: the scheduler overrules it. Each takes its graphs for batches
    up to the largest that has it, so the shorter ones have one batch size each, at the end.
    """
    if not tokens or batch is None:
        return {}
    shorter = list(range(tokens - 1, -1, -1)) if measured else [0]
    whole = batch - len(shorter)
    if whole < 1:
        return {}
    singles = [[size, size, length] for size, length in enumerate(shorter, whole + 1)]
    return {"num_speculative_tokens_per_batch_size": [[1, whole, tokens], *singles]}
