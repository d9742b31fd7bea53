"""Every setting there is: its type, its help, its other names, and what each engine calls it; and the check of values.

Declared once, in `OPTIONS`. The command line's arguments, the check of config files and recipes, and the commands for
other engines (`emit/`) are derived from it.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from dovetail.errors import DovetailError, InvalidRequest, PlanError
from dovetail.formats.history import listed_kinds
from dovetail.plan import hub
from dovetail.plan.methods import LOOKUPS, Method
from dovetail.plan.option import Option
from dovetail.plan.renames import translated

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Degree = Annotated[int, Meta(ge=1, le=4096)]
_CacheType = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4"]
#: Of a drafter that is a checkpoint, and of those that look earlier text up.
_Method: Any = Literal[(*get_args(Method), *LOOKUPS)]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _engine(value: str) -> None:
    if value in ("embedded", "vllm") or all(re.fullmatch(r"https?://[^\s/?#]+\S*", url) for url in value.split(",")):
        return
    if value in ("sglang", "trtllm"):
        raise PlanError(f"start it with what `dovetail plan --emit {value}` prints, and give its URL")
    raise PlanError(
        "it can be embedded, vllm, or the URL of a server that runs, like http://127.0.0.1:8001, or several "
        "with commas between them"
    )


#: What of vLLM's own would keep Dovetail from reaching it. "--" ends its options, of which ours are the last.
_APART = (
    *("--", "--uds", "--api-key", "--root-path", "--headless", "--grpc", "--config"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
    "--data-parallel-multi-port-external-lb",
)
#: What takes its tokenizer from vLLM, without which it can hold no answer to a grammar.
_WITHOUT_TOKENIZER = ("--skip-tokenizer-init", "--tokens-only")
#: What the plan says with Dovetail's gate, where the last word counts.
_GATED = ("--scheduler-cls", "--additional-config")
#: Other names that vLLM has for some of its options.
_OTHERWISE = {
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


def _engine_args(value: str) -> None:
    """Refuse what is a setting here: the plan would not know of it, and say and reckon something else."""
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise PlanError(f"it is read as a shell would read it, and cannot be: {error}") from error
    if words and not words[0].startswith("-"):
        raise PlanError(f"it holds options of vLLM's, and begins with {words[0]!r:.40}")
    for word in words:
        said = word.partition("=")[0].partition(".")[0].replace("_", "-")
        flag = _whole(said)
        if flag == "--reasoning-parser":
            raise PlanError(f"with {said} vLLM would hold answers to their grammar behind the reasoning only")
        if flag == "--model":
            raise PlanError("the model is said first, without a flag")
        if flag in _APART:
            raise PlanError(f"with {said} Dovetail could not reach it")
        if flag in _WITHOUT_TOKENIZER:
            raise PlanError(f"with {said} vLLM could not hold answers to a grammar")
        if flag in _GATED:
            raise PlanError(f"{said} is how Dovetail's gate gets into vLLM: --gate and its limits say what it does")
        for option in OPTIONS:
            if flag in _theirs(option):
                raise PlanError(f"{said} is a setting here: say {option.flags[0]}")


def _theirs(option: Option) -> tuple[str, ...]:
    """What vLLM has for it, and the two ways in which it says no to that."""
    theirs = option.words.get("vllm", "").partition(".")[0]
    named = (theirs, f"--no-{theirs[2:]}", theirs.replace("--enable-", "--disable-"))
    return named if theirs.startswith("--") else ()


def _whole(flag: str) -> str:
    """The option that it stands for, of those that matter: vLLM takes the beginning of one for it (argparse does)."""
    if not flag.startswith("-"):
        return flag  # a value
    if flag.startswith("-q"):
        return _OTHERWISE["-q"]  # with its value, perhaps, as in -qfp8
    own = ("--reasoning-parser", *_WITHOUT_TOKENIZER, *_GATED)
    names = (*_APART, *own, *_OTHERWISE, *(name for option in OPTIONS for name in _theirs(option)))
    if flag not in (*names, "-", "-dc"):  # -dc is whole, and another option
        flag = next((name for name in names if name.startswith(flag)), flag)
    return _OTHERWISE.get(flag, flag)


def _repairs(value: str) -> None:
    try:
        listed_kinds(value)
    except InvalidRequest as error:
        raise PlanError(f"{error.message}, all, none") from error


def _variables(value: Mapping[str, Any]) -> None:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            raise PlanError(f"{name!r:.80} is no name of an environment variable")
        if isinstance(value[name], str) and "\0" in value[name]:
            raise PlanError(f"no environment variable can hold a NUL, as {name} does")


OPTIONS: tuple[Option, ...] = (
    Option(
        "target",
        _Text,
        "the model: a checkpoint's folder or a hub id",
        "what runs",
        {"embedded": "target", "vllm": "MODEL", "sglang": "--model-path", "trtllm": "MODEL"},
        aliases=("model",),
        path="checkpoint",
        command_line=False,  # there it has no flag: it comes first
        common=True,
    ),
    Option(
        "drafter",
        _Text | None,
        "a drafter's folder or hub id, or none",
        "drafting",
        {
            "embedded": "drafter",
            "vllm": "--speculative-config.model",
            "sglang": "--speculative-draft-model-path",
            "trtllm": "speculative_config.speculative_model",
        },
        metavar="PATH|none",
        path="checkpoint",
        common=True,
    ),
    Option(
        "tokenizer",
        _Text | None,
        "a tokenizer's folder or hub id (default: the target's own)",
        "what runs",
        {"vllm": "--tokenizer", "sglang": "--tokenizer-path", "trtllm": "--tokenizer"},
        metavar="PATH",
        path="checkpoint",
    ),
    Option(
        "revision",
        _Text | None,
        "which revision of the target on the hub (default: its newest)",
        "what runs",
        {"vllm": "--revision", "sglang": "--revision", "trtllm": "--revision"},
        metavar="NAME",
    ),
    Option(
        "trust_remote_code",
        bool | None,
        "let the engine run Python that comes with the checkpoint (default: no)",
        "what runs",
        {"vllm": "--trust-remote-code", "sglang": "--trust-remote-code", "trtllm": "--trust_remote_code"},
    ),
    Option(
        "engine",
        _Text,
        "what completes prompts: Dovetail's own, vLLM, or servers that run (default: embedded where that can and no "
        "GPUs are named or found, else vllm)",
        "what runs",
        gateway=True,
        metavar="embedded|vllm|URL[,URL]",
        valid=_engine,
        common=True,
    ),
    Option(
        "method",
        _Method | None,
        "how tokens are drafted (default: as the drafter says; embedded: suffix where there is none)",
        "drafting",
        {
            "embedded": "drafter",
            "vllm": "--speculative-config.method",
            "sglang": "--speculative-algorithm",
            "trtllm": "speculative_config.decoding_type",
        },
        common=True,
    ),
    Option(
        "draft_tokens",
        Annotated[int, Meta(ge=0, le=64)],
        "tokens to draft a step (default: the drafter's, else 3; embedded: 5 by suffix, and at most 8)",
        "drafting",
        {
            "embedded": "draft_tokens",
            "vllm": "--speculative-config.num_speculative_tokens",
            "sglang": "--speculative-num-steps",
            "trtllm": "speculative_config.max_draft_len",
        },
        metavar="K",
        common=True,
    ),
    Option(
        "gate",
        Literal["measured", "off"],
        "who says how much is drafted: measured acceptance and times, for each sequence what pays, or draft_tokens "
        "always (embedded: measured); the limits below hold for both",
        "drafting",
        {"embedded": "gate"},
        common=True,
    ),
    Option(
        "max_draft_tokens",
        Annotated[int, Meta(ge=1, le=64)] | None,
        "limit: the most that is drafted a step, however well it pays (embedded: at most 8; default: 8, or your own "
        "draft_tokens)",
        "drafting",
        {"embedded": "max_draft_tokens"},
        metavar="K",
    ),
    Option(
        "speculate_below_context",
        _Count | None,
        "limit: sequences of this many tokens and more are not drafted for (default: none)",
        "drafting",
        {"embedded": "speculate_below_context"},
        metavar="TOKENS",
    ),
    Option(
        "speculate_up_to_batch",
        _Degree | None,
        "limit: with more sequences than this decoding at once nothing is drafted (default: none)",
        "drafting",
        {"embedded": "speculate_up_to_batch"},
        metavar="N",
    ),
    Option(
        "draft_sampling",
        Literal["greedy", "probabilistic"] | None,
        "how the drafter picks: its best token, or one by its distribution, which more sampled drafts survive "
        "(embedded: probabilistic)",
        "drafting",
        {
            "embedded": "draft_sampling",
            "vllm": "--speculative-config.draft_sample_method",
            "sglang": "--speculative-use-rejection-sampling",
        },
    ),
    Option(
        "draft_top_k",
        Annotated[int, Meta(ge=1, le=16)] | None,
        "branches of a tree of drafts at every token, 1: a chain; a grammar follows a chain only (--strict off)",
        "drafting",
        {"sglang": "--speculative-eagle-topk"},
        metavar="N",
    ),
    Option(
        "prompt_lookup_min",
        Annotated[int, Meta(ge=1, le=64)] | None,
        "tokens that have to be alike before method ngram drafts what followed them (default: 8)",
        "drafting",
        {"vllm": "--speculative-config.prompt_lookup_min"},
        metavar="N",
    ),
    Option(
        "draft_attention_backend",
        _Text | None,
        "the drafter's attention kernels, where they differ from the target's",
        "drafting",
        {
            "embedded": "draft_attention_backend",
            "vllm": "--speculative-config.attention_backend",
            "sglang": "--speculative-draft-attention-backend",
        },
        metavar="NAME",
    ),
    Option(
        "draft_kv_cache_dtype",
        _CacheType | None,
        "what the drafter's KV cache is stored as, where it differs from the target's",
        "drafting",
        {
            "embedded": "draft_kv_cache_dtype",
            "vllm": "--speculative-config.kv_cache_dtype",
            "sglang": "--speculative-draft-kv-cache-dtype",
        },
    ),
    Option(
        "draft_tensor_parallel_size",
        _Degree | None,
        "GPUs that share the drafter: 1, or as many as share the target",
        "drafting",
        {"vllm": "--speculative-config.draft_tensor_parallel_size"},
        metavar="N",
    ),
    Option(
        "local_argmax",
        bool | None,
        "each GPU picks the best draft token of its own part of the vocabulary; greedy drafts only",
        "drafting",
        {"vllm": "--speculative-config.use_local_argmax_reduction"},
    ),
    Option(
        "dtype",
        Literal["auto", "float32", "bfloat16", "float16"],
        "of weights and compute (embedded: float32 or bfloat16, in which near ties may fall otherwise with drafting; "
        "default: float32)",
        "engine",
        {"embedded": "dtype", "vllm": "--dtype", "sglang": "--dtype", "trtllm": "dtype"},
    ),
    Option(
        "quantization",
        _Text | None,
        "how weights are quantized, where the checkpoint does not say (embedded: int8, as they load)",
        "engine",
        {"embedded": "quantization", "vllm": "--quantization", "sglang": "--quantization"},
        metavar="NAME",
        common=True,
    ),
    Option(
        "load_format",
        _Text | None,
        "how weight files are read, such as safetensors or fastsafetensors",
        "engine",
        {"vllm": "--load-format", "sglang": "--load-format"},
        metavar="NAME",
    ),
    Option(
        "attention_backend",
        _Text | None,
        "attention kernels, by vLLM's names, such as TRITON_MLA or FLASH_ATTN (default: the engine's choice; embedded: "
        "auto, matmul or sdpa)",
        "engine",
        {
            "embedded": "attention_backend",
            "vllm": "--attention-backend",
            "sglang": "--attention-backend",
        },
        metavar="NAME",
    ),
    Option(
        "kv_cache_dtype",
        _CacheType | None,
        "what the KV cache is stored as; fp8 halves it (default: as the weights are computed in; embedded: auto or "
        "bfloat16)",
        "engine",
        {
            "embedded": "kv_cache_dtype",
            "vllm": "--kv-cache-dtype",
            "sglang": "--kv-cache-dtype",
            "trtllm": "kv_cache_config.dtype",
        },
    ),
    Option(
        "kv_cache_memory_bytes",
        Annotated[int, Meta(ge=1, le=2**50)] | None,
        "memory of the KV cache, on each GPU; of the embedded engine, where it holds one sequence at least (embedded: "
        "1 GiB)",
        "engine",
        {"embedded": "kv_cache_memory_bytes", "vllm": "--kv-cache-memory-bytes"},
        metavar="BYTES",
    ),
    Option(
        "context",
        _Count,
        "longest sequence, in tokens (default: the target's)",
        "engine",
        {
            "embedded": "context",
            "vllm": "--max-model-len",
            "sglang": "--context-length",
            "trtllm": "--max_seq_len",
        },
        metavar="TOKENS",
        aliases=("max_model_len",),
        common=True,
    ),
    Option(
        "max_batch",
        _Degree,
        "sequences that run at once (embedded: 16)",
        "engine",
        {
            "embedded": "max_batch",
            "vllm": "--max-num-seqs",
            "sglang": "--max-running-requests",
            "trtllm": "--max_batch_size",
        },
        metavar="N",
        aliases=("max_num_seqs",),
        common=True,
    ),
    Option(
        "max_batched_tokens",
        _Count | None,
        "tokens that one step computes, over all sequences (embedded: 512)",
        "engine",
        {
            "embedded": "max_batched_tokens",
            "vllm": "--max-num-batched-tokens",
            "sglang": "--chunked-prefill-size",
            "trtllm": "--max_num_tokens",
        },
        metavar="TOKENS",
        aliases=("max_num_batched_tokens",),
    ),
    Option(
        "gpu_memory_utilization",
        Annotated[float, Meta(gt=0, le=1)] | None,
        "the part of each GPU's memory that vLLM may take, weights and KV cache included",
        "engine",
        {"vllm": "--gpu-memory-utilization"},
        metavar="PART",
    ),
    Option(
        "async_scheduling",
        bool | None,
        "prepare the next step while this one computes (default: the engine's choice; embedded: where there is enough "
        "to prepare)",
        "engine",
        {
            "embedded": "async_scheduling",
            "vllm": "--async-scheduling",
            "sglang": "--disable-overlap-schedule",
            "trtllm": "disable_overlap_scheduler",
        },
    ),
    Option(
        "prefix_caching",
        bool | None,
        "keep the KV cache of prompts for later ones that start alike",
        "engine",
        {
            "embedded": "prefix_caching",
            "vllm": "--enable-prefix-caching",
            "sglang": "--disable-radix-cache",
            "trtllm": "kv_cache_config.enable_block_reuse",
        },
        aliases=("enable_prefix_caching",),
    ),
    Option(
        "chunked_prefill",
        bool | None,
        "compute long prompts in parts, between the steps of others",
        "engine",
        {
            "embedded": "max_batched_tokens",
            "vllm": "--enable-chunked-prefill",
            "sglang": "--chunked-prefill-size",
            "trtllm": "--enable_chunked_prefill",
        },
        aliases=("enable_chunked_prefill",),
    ),
    Option(
        "language_model_only",
        bool | None,
        "leave a multimodal model's encoders out, and their memory to the KV cache",
        "engine",
        {"vllm": "--language-model-only", "sglang": "--language-model-only"},
    ),
    Option(
        "mm_processor_cache_gb",
        Annotated[float, Meta(ge=0, le=65536)] | None,
        "memory that keeps processed images for when they come again; 0: none",
        "engine",
        {"vllm": "--mm-processor-cache-gb", "sglang": "--mm-preprocess-cache-size-mb"},
        metavar="GB",
    ),
    Option(
        "mm_encoder_tp_mode",
        Literal["weights", "data"] | None,
        "how GPUs share an encoder: its weights, or its images",
        "engine",
        {"vllm": "--mm-encoder-tp-mode", "sglang": "--mm-enable-dp-encoder"},
    ),
    Option(
        "seed",
        Annotated[int, Meta(ge=0, le=2**32 - 1)] | None,
        "of sampling",
        "engine",
        {"vllm": "--seed", "sglang": "--random-seed"},
        metavar="N",
    ),
    Option(
        "grammar_backend",
        Literal["xgrammar", "guidance"] | None,
        "who holds answers to a grammar in vLLM: guidance keeps more of a schema and takes less time to compile it, "
        "and needs a tokenizer.json (default: xgrammar)",
        "engine",
        {"vllm": "--structured-outputs-config.backend"},
    ),
    Option(
        "env",
        dict[str, str | int | float | None],
        "environment variables of the engine's processes",
        "engine",
        {"vllm": "environment", "sglang": "environment", "trtllm": "environment"},
        command_line=False,  # the shell has its own way of saying these
        valid=_variables,
    ),
    Option(
        "engine_args",
        _Text | None,
        "more options for vLLM, such as '--enforce-eager --block-size 64': what no setting here is for (as "
        "--engine-args='…')",
        "engine",
        {"vllm": "options"},
        metavar="'OPTIONS'",
        valid=_engine_args,
    ),
    Option(
        "vllm",
        _Text | None,
        "vLLM's program (default: the `vllm` beside this Python, else on the PATH)",
        "engine",
        gateway=True,
        metavar="PROGRAM",
        path="file",
    ),
    Option(
        "engine_log",
        _Text | None,
        "where what vLLM writes goes (default: ~/.local/state/dovetail/vllm-PORT.log)",
        "engine",
        gateway=True,
        metavar="FILE",
        path="file",
    ),
    Option(
        "engine_api_key_file",
        _Text | None,
        "a file with the key that the servers want which --engine names",
        "engine",
        gateway=True,
        metavar="FILE",
        path="file",
    ),
    Option(
        "gpus",
        _Text | None,
        "the machine to plan for, such as '8x B200' or '8x96GB', or auto (default: what is here)",
        "machine",
        metavar="GPUS",
    ),
    Option(
        "tensor_parallel_size",
        _Degree | None,
        "GPUs that share every layer",
        "machine",
        {"vllm": "--tensor-parallel-size", "sglang": "--tp-size", "trtllm": "--tp_size"},
        metavar="N",
        common=True,
    ),
    Option(
        "pipeline_parallel_size",
        _Degree | None,
        "groups of GPUs that hold a part of the layers each",
        "machine",
        {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size", "trtllm": "--pp_size"},
        metavar="N",
    ),
    Option(
        "data_parallel_size",
        _Degree | None,
        "groups of GPUs that hold the whole model each and share the requests",
        "machine",
        {"vllm": "--data-parallel-size", "sglang": "--dp-size"},
        metavar="N",
    ),
    Option(
        "decode_context_parallel_size",
        _Degree | None,
        "GPUs among those of tensor parallelism that hold a part of every sequence's KV cache each",
        "machine",
        {"vllm": "--decode-context-parallel-size", "sglang": "--dcp-size"},
        metavar="N",
    ),
    Option(
        "threads",
        Annotated[int, Meta(ge=1, le=1024)] | None,
        "CPU threads (default: the engine's choice)",
        "machine",
        {"embedded": "threads"},
        metavar="N",
    ),
    Option(
        "format",
        _Text,
        "the model's language (default: detected)",
        "serving",
        {"vllm": "--tool-call-parser", "sglang": "--tool-call-parser", "trtllm": "--tool_parser"},
        gateway=True,
        metavar="NAME",
        common=True,
    ),
    Option(
        "strict",
        Literal["off", "names", "schema"],
        "what calls keep to unless tool or request says: nothing, tool names, or names and schemas (default: schema)",
        "serving",
        gateway=True,
        common=True,
    ),
    Option(
        "retry_invalid",
        Annotated[int, Meta(ge=0, le=16)] | None,
        "times to ask again for a turn with an invalid call, before the client has seen anything of that; calls are "
        "held back until the turn is over (default: 0)",
        "serving",
        gateway=True,
        metavar="N",
    ),
    Option(
        "no_repair",
        str,
        "repairs that histories do not get (default: none)",
        "serving",
        gateway=True,
        metavar="KIND[,KIND]|all",
        valid=_repairs,
    ),
    Option(
        "served_model_name",
        _Text,
        "what clients call it (default: the folder's name, or the hub id)",
        "serving",
        {"vllm": "--served-model-name", "sglang": "--served-model-name"},
        gateway=True,
        metavar="NAME",
        common=True,
    ),
    Option(
        "host",
        _Text,
        "address to listen on (default: 127.0.0.1)",
        "serving",
        {"vllm": "--host", "sglang": "--host", "trtllm": "--host"},
        gateway=True,
        metavar="HOST",
        common=True,
    ),
    Option(
        "port",
        Annotated[int, Meta(ge=1, le=65535)],
        "port to listen on (default: 8000)",
        "serving",
        {"vllm": "--port", "sglang": "--port", "trtllm": "--port"},
        gateway=True,
        metavar="PORT",
        common=True,
    ),
    Option(
        "api_key_file",
        _Text | None,
        "a file with the key that clients must send",
        "serving",
        {"vllm": "VLLM_API_KEY", "sglang": "--api-key"},
        gateway=True,
        metavar="FILE",
        path="file",
        common=True,
    ),
)
BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
#: The gate and its limits -> what an engine does that has no such thing.
GATE: Mapping[str, str] = {
    "gate": "drafts as much at every step",
    "max_draft_tokens": "drafts as much at every step",
    "speculate_below_context": "drafts at any length",
    "speculate_up_to_batch": "drafts in batches of any size",
}


def check(values: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """`values` by today's names, with absolute paths (relative ones start at `folder`).

    Raises `PlanError` naming `where` and the setting.
    """
    return checked(values, where, folder)[0]


def checked(values: Mapping[str, Any], where: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """As `check`, and a note for every name that was not today's."""
    today, notes = translated(values, where, _aliases(), _members())
    for name in today:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, [*BY_NAME, *_aliases()], n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; it may hold {', '.join(BY_NAME)}"
            raise PlanError(f"{where}: there is no setting {name!r:.80}{hint}")
    return {name: _checked(BY_NAME[name], value, where, folder) for name, value in today.items()}, notes


def _checked(option: Option, value: Any, where: str, folder: Path) -> Any:
    if value == "none" and option.nullable:
        value = None
    try:
        msgspec.convert(value, option.type)
        if isinstance(value, str) and "\0" in value:
            raise PlanError("no name and no path can hold a NUL")
        if option.valid is not None and value is not None:
            option.valid(value)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise PlanError(f"{where}: {option.name} is {value!r:.80}: {reason[:1].lower()}{reason[1:]}") from error
    except DovetailError as error:
        raise PlanError(f"{where}: {option.name} is {value!r:.80}: {error.message}") from error
    if value is None or option.path is None:
        return value
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(value)))
    if option.path == "checkpoint" and hub.ID.fullmatch(value) and not os.path.exists(path):
        return value
    return path


def _aliases() -> dict[str, str]:
    return {alias: option.name for option in OPTIONS for alias in option.aliases}


def _members() -> dict[str, str]:
    """What vLLM calls the members of its --speculative-config -> our settings."""
    words = {option.words.get("vllm", ""): option.name for option in OPTIONS}
    return {word.partition(".")[2]: name for word, name in words.items() if word.startswith("--speculative-config.")}
