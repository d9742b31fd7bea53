"""Every setting, declared once: its type, its help, and its name in each engine; and the check of values.

The command line's arguments, the check of config files and recipes, and the commands for other engines (`emit/`) are
derived from `OPTIONS`.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from dovetail.checkpoints import fixed_sampling, hub
from dovetail.checkpoints.methods import LOOKUPS, Method
from dovetail.errors import DovetailError, InvalidRequest, PlanError
from dovetail.formats.prompts.history import listed_kinds
from dovetail.plan.option import Option
from dovetail.plan.renames import translated

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=1, le=2**50)]
_Days = Annotated[float, Meta(gt=0, le=36_500)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_Degree = Annotated[int, Meta(ge=1, le=4096)]
_CacheType = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4"]
#: Methods of drafters that are checkpoints, and lookups in earlier text.
_Method: Any = Literal[(*get_args(Method), *LOOKUPS)]
_HOST = re.compile(r"(?=.*[a-z])[a-z0-9-]+(\.[a-z0-9-]+)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,?#@A-Z]+")
_MODE = re.compile(r"0?[0-7]{3}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: A server of Redis, Valkey or PostgreSQL, and what no message shows of it.
_STORE = re.compile(r"(redis|rediss|valkey|valkeys|postgresql|postgres)://[^\s/?#]+[^\s#]*")
_PASSWORD = re.compile(r"(?<=://)[^\s/?#@]*:[^\s/?#]*(?=@)|(?<=password=)[^&\s]+", re.IGNORECASE)
#: A server, a name with several addresses, or a service of Kubernetes.
_ADDRESS = re.compile(r"\s*(https?|dns|kubernetes)://[^\s/?#]+\S*\s*")


def _validate_engine(value: str) -> None:
    if value in ("embedded", "vllm", "llama.cpp") or all(map(_ADDRESS.fullmatch, value.split(","))):
        return
    if value in ("sglang", "trtllm"):
        raise PlanError(f"start it with the command that `dovetail plan --emit {value}` prints, and give its URL")
    raise PlanError(
        "it can be embedded, vllm, llama.cpp, or the URL of a running server, like http://127.0.0.1:8001, or several "
        "separated by commas; dns://NAME:PORT and kubernetes://SERVICE stand for all servers behind a name"
    )


def _validate_repairs(value: str) -> None:
    try:
        listed_kinds(value)
    except InvalidRequest as error:
        raise PlanError(f"{error.message}, all, none") from error


def _validate_acceptance(value: str) -> None:
    if value in ("fly", "synthetic"):
        raise PlanError(f"{value} accepts drafts that the model would not have written: use block or standard")
    if value not in ("standard", "block"):
        raise PlanError(f"{value!r:.80} is none of standard, block")


def _validate_fixed_sampling(value: str) -> None:
    if value not in ("none", "model"):
        try:
            fixed_sampling.parse(value)
        except InvalidRequest as error:
            raise PlanError(error.message) from error


def _validate_origins(value: str) -> None:
    for origin in value.split(","):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise PlanError(
                f"{origin!r:.80} is not an origin: it is a scheme, a host and perhaps a port, without a path, such as "
                "https://app.example or http://localhost:3000; * lets every page call"
            )


def _validate_image_hosts(value: str) -> None:
    for host in value.split(","):
        if host != "*" and not _HOST.fullmatch(host):
            raise PlanError(f"{host!r:.80} is not the name of a host: give one like images.example, or *")


def _validate_aliases(value: str) -> None:
    for alias in value.split(","):
        name, equals, served = alias.rpartition("=")
        if not (name and equals and served):
            raise PlanError(f"{alias!r:.80} is not an alias: give a further name and the served one, as in haiku=NAME")


def _validate_collector(value: str) -> None:
    if "@" in value:
        raise PlanError("it must not contain a key: put that into OTEL_EXPORTER_OTLP_HEADERS")
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value):
        raise PlanError("it must be the URL of a collector, such as http://localhost:4318")


def _validate_store(value: str) -> None:
    if _PASSWORD.search(value):
        raise PlanError(
            "every user of the machine sees it: put the password into DOVETAIL_STORE_PASSWORD, or the whole URL into "
            "DOVETAIL_STORE"
        )
    if not _STORE.fullmatch(value):
        raise PlanError("it must be redis://HOST, rediss://HOST (TLS) or postgresql://HOST/DATABASE")


def _validate_mode(value: str) -> None:
    if not _MODE.fullmatch(value):
        raise PlanError(f"{value!r:.80} is no mode of a file: give three octal digits, such as 600 or 660")


def _validate_variables(variables: Mapping[str, Any]) -> None:
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise PlanError(f"{name!r:.80} is not a name of an environment variable")
        if isinstance(value, str) and "\0" in value:
            raise PlanError(f"{name} contains a NUL, which no environment variable can hold")


_what_runs = functools.partial(Option, group="what runs")
_drafting = functools.partial(Option, group="drafting")
_engine = functools.partial(Option, group="engine")
_machine = functools.partial(Option, group="machine")
_serving = functools.partial(Option, group="serving", gateway=True)
_server = functools.partial(_serving, of_server=True)

OPTIONS: tuple[Option, ...] = (
    _what_runs(
        "target",
        _Text,
        "the model to serve: a checkpoint folder, a GGUF file or a hub id",
        {"embedded": "target", "vllm": "MODEL", "sglang": "--model-path", "trtllm": "MODEL", "llama.cpp": "model"},
        aliases=("model",),
        path="checkpoint",
        command_line=False,  # it is the positional argument
        common=True,
    ),
    _drafting(
        "drafter",
        _Text | None,
        "the drafter: a checkpoint folder or a hub id, or none",
        {
            "embedded": "drafter",
            "vllm": "--speculative-config.model",
            "sglang": "--speculative-draft-model-path",
            "trtllm": "speculative_config.speculative_model",
            "llama.cpp": "drafter",
        },
        metavar="PATH|none",
        path="checkpoint",
        unset_word="none",
        common=True,
    ),
    _what_runs(
        "tokenizer",
        _Text | None,
        "a tokenizer folder or hub id (default: the target's own tokenizer)",
        {"vllm": "--tokenizer", "sglang": "--tokenizer-path", "trtllm": "--tokenizer"},
        metavar="PATH",
        path="checkpoint",
    ),
    _what_runs(
        "revision",
        _Text | None,
        "revision of the target on the hub (default: the newest)",
        {"vllm": "--revision", "sglang": "--revision", "trtllm": "--revision"},
    ),
    _what_runs(
        "trust_remote_code",
        bool | None,
        "let the engine run Python code that comes with the checkpoint (default: no)",
        {"vllm": "--trust-remote-code", "sglang": "--trust-remote-code", "trtllm": "--trust_remote_code"},
    ),
    _what_runs(
        "engine",
        _Text,
        "the engine that runs the model: Dovetail's own, vLLM, llama.cpp, or servers that already run (default: "
        "embedded if it can run the plan and no GPUs are named or detected, else vllm; for a GGUF file llama.cpp if "
        "it is here)",
        gateway=True,
        metavar="embedded|vllm|llama.cpp|URL[,URL]|dns://NAME:PORT|kubernetes://NAME",
        common=True,
        validate=_validate_engine,
    ),
    _drafting(
        "method",
        _Method | None,
        "how tokens are drafted (default: the drafter's method; embedded without a drafter: suffix)",
        {
            "embedded": "drafter",
            "vllm": "--speculative-config.method",
            "sglang": "--speculative-algorithm",
            "trtllm": "speculative_config.decoding_type",
            "llama.cpp": "method",
        },
        unset_word="none",
        common=True,
    ),
    _drafting(
        "draft_tokens",
        Annotated[int, Meta(ge=0, le=64)],
        "tokens to draft per step (default: the drafter's number, else 3; embedded: 5 for suffix, and at most 8)",
        {
            "embedded": "draft_tokens",
            "vllm": "--speculative-config.num_speculative_tokens",
            "sglang": "--speculative-num-steps",
            "trtllm": "speculative_config.max_draft_len",
            "llama.cpp": "draft_tokens",
        },
        metavar="K",
        common=True,
    ),
    _drafting(
        "gate",
        Literal["measured", "off"],
        "measured: draft as many tokens as pay off for each sequence, by measured acceptance and step times; off: "
        "always draft draft_tokens (default: measured on the embedded engine); limits on drafting apply to both",
        {"embedded": "gate"},
        common=True,
    ),
    _drafting(
        "max_draft_tokens",
        Annotated[int, Meta(ge=1, le=64)] | None,
        "limit: most tokens to draft per step with a measured gate (embedded: at most 8; default: 8, or the "
        "draft_tokens that you set)",
        {"embedded": "max_draft_tokens"},
        metavar="K",
    ),
    _drafting(
        "speculate_below_context",
        _Count | None,
        "limit: do not draft for sequences of this many tokens or more (default: no limit)",
        {"embedded": "speculate_below_context"},
        metavar="TOKENS",
    ),
    _drafting(
        "speculate_up_to_batch",
        _Degree | None,
        "limit: do not draft while more sequences than this decode at once (default: no limit)",
        {"embedded": "speculate_up_to_batch"},
    ),
    _drafting(
        "draft_sampling",
        Literal["greedy", "probabilistic"] | None,
        "how the drafter picks a token: greedy takes the most likely one; probabilistic samples from the drafter's "
        "distribution, so that more drafts are accepted in sampled answers (embedded: probabilistic)",
        {
            "embedded": "draft_sampling",
            "vllm": "--speculative-config.draft_sample_method",
            "sglang": "--speculative-use-rejection-sampling",
        },
    ),
    _drafting(
        "draft_acceptance",
        _Text | None,
        "how drafts of sampled answers are tested: standard, one by one; block, all of a step together, which accepts "
        "as many or more (default: block where drafts are probabilistic and the engine has it)",
        {"vllm": "--speculative-config.rejection_sample_method"},
        metavar="standard|block",
        validate=_validate_acceptance,
    ),
    _drafting(
        "draft_top_k",
        Annotated[int, Meta(ge=1, le=16)] | None,
        "branches at every token of a tree of drafts; 1 drafts a chain (more than 1 needs --strict off, because a "
        "grammar can only follow a chain)",
        {"sglang": "--speculative-eagle-topk"},
    ),
    _drafting(
        "prompt_lookup_min",
        Annotated[int, Meta(ge=1, le=64)] | None,
        "the shortest match, in tokens, after which method ngram drafts (default: 8)",
        {"vllm": "--speculative-config.prompt_lookup_min"},
    ),
    _drafting(
        "draft_attention_backend",
        _Text | None,
        "the drafter's attention kernels, if they differ from the target's",
        {
            "embedded": "draft_attention_backend",
            "vllm": "--speculative-config.attention_backend",
            "sglang": "--speculative-draft-attention-backend",
        },
    ),
    _drafting(
        "draft_kv_cache_dtype",
        _CacheType | None,
        "data type of the drafter's KV cache, if it differs from the target's",
        {
            "embedded": "draft_kv_cache_dtype",
            "vllm": "--speculative-config.kv_cache_dtype",
            "sglang": "--speculative-draft-kv-cache-dtype",
        },
    ),
    _drafting(
        "draft_tensor_parallel_size",
        _Degree | None,
        "GPUs that share the drafter: 1, or as many as share the target",
        {"vllm": "--speculative-config.draft_tensor_parallel_size"},
    ),
    _drafting(
        "local_argmax",
        bool | None,
        "each GPU picks the best draft token of its own part of the vocabulary; for greedy drafts only",
        {"vllm": "--speculative-config.use_local_argmax_reduction"},
    ),
    _engine(
        "dtype",
        Literal["auto", "float32", "bfloat16", "float16"],
        "data type of weights and computation (embedded: float32 or bfloat16; with bfloat16, drafting can change "
        "which of two nearly equal tokens is chosen; default: float32)",
        {"embedded": "dtype", "vllm": "--dtype", "sglang": "--dtype", "trtllm": "dtype"},
    ),
    _engine(
        "quantization",
        _Text | None,
        "how to quantize weights, if the checkpoint does not say (embedded: int8, while they load)",
        {"embedded": "quantization", "vllm": "--quantization", "sglang": "--quantization"},
        common=True,
    ),
    _engine(
        "load_format",
        _Text | None,
        "how weight files are read, such as safetensors or fastsafetensors",
        {"vllm": "--load-format", "sglang": "--load-format"},
    ),
    _engine(
        "attention_backend",
        _Text | None,
        "attention kernels, by vLLM's names, such as TRITON_MLA or FLASH_ATTN (default: the engine's choice; embedded: "
        "auto, matmul or sdpa)",
        {
            "embedded": "attention_backend",
            "vllm": "--attention-backend",
            "sglang": "--attention-backend",
        },
    ),
    _engine(
        "kv_cache_dtype",
        _CacheType | None,
        "data type of the KV cache; fp8 halves its size (default: the data type of computation; embedded: auto, "
        "bfloat16, or for latents (MLA) fp8 and fp8_ds_mla)",
        {
            "embedded": "kv_cache_dtype",
            "vllm": "--kv-cache-dtype",
            "sglang": "--kv-cache-dtype",
            "trtllm": "kv_cache_config.dtype",
        },
    ),
    _engine(
        "kv_cache_memory_bytes",
        _Bytes | None,
        "memory for the KV cache on each GPU, or of the embedded engine, which always has room for one sequence "
        "(embedded: 1 GiB)",
        {"embedded": "kv_cache_memory_bytes", "vllm": "--kv-cache-memory-bytes"},
        metavar="BYTES",
    ),
    _engine(
        "context",
        _Count,
        "longest sequence, in tokens (default: the target's)",
        {
            "embedded": "context",
            "vllm": "--max-model-len",
            "sglang": "--context-length",
            "trtllm": "--max_seq_len",
            "llama.cpp": "context",
        },
        metavar="TOKENS",
        aliases=("max_model_len", "ctx_size"),
        common=True,
    ),
    _engine(
        "max_batch",
        _Degree,
        "most sequences that run at once (embedded: 16, llama.cpp: 4)",
        {
            "embedded": "max_batch",
            "vllm": "--max-num-seqs",
            "sglang": "--max-running-requests",
            "trtllm": "--max_batch_size",
            "llama.cpp": "--parallel",
        },
        aliases=("max_num_seqs", "parallel"),
        common=True,
    ),
    _engine(
        "max_batched_tokens",
        _Count | None,
        "most tokens that one step computes, over all sequences (embedded: 512)",
        {
            "embedded": "max_batched_tokens",
            "vllm": "--max-num-batched-tokens",
            "sglang": "--chunked-prefill-size",
            "trtllm": "--max_num_tokens",
            "llama.cpp": "--batch-size",
        },
        metavar="TOKENS",
        aliases=("max_num_batched_tokens",),
    ),
    _engine(
        "gpu_memory_utilization",
        Annotated[float, Meta(gt=0, le=1)] | None,
        "fraction of each GPU's memory that vLLM may use, for weights and KV cache together",
        {"vllm": "--gpu-memory-utilization"},
        metavar="FRACTION",
    ),
    _engine(
        "async_scheduling",
        bool | None,
        "prepare the next step while this one computes (default: the engine's choice; embedded: if there is enough to "
        "prepare)",
        {
            "embedded": "async_scheduling",
            "vllm": "--async-scheduling",
            "sglang": "--disable-overlap-schedule",
            "trtllm": "disable_overlap_scheduler",
        },
    ),
    _engine(
        "prefix_caching",
        bool | None,
        "reuse the KV cache of earlier prompts that start alike",
        {
            "embedded": "prefix_caching",
            "vllm": "--enable-prefix-caching",
            "sglang": "--disable-radix-cache",
            "trtllm": "kv_cache_config.enable_block_reuse",
        },
        aliases=("enable_prefix_caching",),
    ),
    _engine(
        "chunked_prefill",
        bool | None,
        "compute long prompts in parts, between the steps of other sequences",
        {
            "embedded": "max_batched_tokens",
            "vllm": "--enable-chunked-prefill",
            "sglang": "--chunked-prefill-size",
            "trtllm": "--enable_chunked_prefill",
        },
        aliases=("enable_chunked_prefill",),
    ),
    _engine(
        "language_model_only",
        bool | None,
        "do not load a multimodal model's encoders, so that their memory goes to the KV cache",
        {"vllm": "--language-model-only", "sglang": "--language-model-only"},
    ),
    _engine(
        "mm_processor_cache_gb",
        Annotated[float, Meta(ge=0, le=65536)] | None,
        "memory for processed images, in case they are sent again; 0: none",
        {"vllm": "--mm-processor-cache-gb", "sglang": "--mm-preprocess-cache-size-mb"},
        metavar="GB",
    ),
    _engine(
        "mm_encoder_tp_mode",
        Literal["weights", "data"] | None,
        "what GPUs divide among them in an image encoder: its weights, or its images (data)",
        {"vllm": "--mm-encoder-tp-mode", "sglang": "--mm-enable-dp-encoder"},
    ),
    _engine(
        "seed",
        Annotated[int, Meta(ge=0, le=2**32 - 1)] | None,
        "seed of the engine's random numbers, which sampling uses",
        {"vllm": "--seed", "sglang": "--random-seed"},
    ),
    _engine(
        "grammar_backend",
        Literal["xgrammar", "guidance"] | None,
        "the library that enforces grammars inside vLLM: guidance enforces more of a schema, compiles it faster, and "
        "needs a tokenizer.json (default: xgrammar)",
        {"vllm": "--structured-outputs-config.backend"},
    ),
    _engine(
        "env",
        dict[str, str | int | float | None],
        "environment variables of the engine's processes",
        {"vllm": "environment", "sglang": "environment", "trtllm": "environment"},
        command_line=False,  # a shell sets variables in its own way
        validate=_validate_variables,
    ),
    _engine(
        "engine_args",
        _Text | None,
        "more options for vLLM or llama.cpp that are not settings here, such as '--enforce-eager --block-size 64' "
        "(write --engine-args='…')",
        {"vllm": "options", "llama.cpp": "options"},
        metavar="'OPTIONS'",
    ),
    _engine(
        "vllm",
        _Text | None,
        "the vLLM program (default: the `vllm` beside this Python, else on the PATH)",
        gateway=True,
        metavar="PROGRAM",
        path="file",
    ),
    _engine(
        "llama_server",
        _Text | None,
        "llama.cpp's server (default: the `llama-server` beside this Python, else on the PATH)",
        gateway=True,
        metavar="PROGRAM",
        path="file",
    ),
    _engine(
        "engine_log",
        _Text | None,
        "file for the output of vLLM or llama.cpp (default: ~/.local/state/dovetail/ENGINE-PORT.log)",
        gateway=True,
        metavar="FILE",
        path="file",
    ),
    _engine(
        "engine_api_key_file",
        _Text | None,
        "file with the key of the servers that --engine names",
        gateway=True,
        metavar="FILE",
        path="file",
    ),
    _engine(
        "first_token_timeout",
        _Seconds | None,
        "seconds in which vLLM or a server that --engine names has to send the first token of an answer; then the "
        "request ends with status 504 (default: 300)",
        gateway=True,
        metavar="SECONDS",
    ),
    _engine(
        "engine_idle_timeout",
        _Seconds | None,
        "seconds that may pass between two tokens from vLLM or a server; then the answer ends with an error "
        "(default: 120)",
        gateway=True,
        metavar="SECONDS",
    ),
    _engine(
        "engine_down_timeout",
        _Seconds | None,
        "seconds for which a request waits while vLLM or every server is down; then it ends with status 502 (default: "
        "60 for servers, 900 for vLLM, which is restarted)",
        gateway=True,
        metavar="SECONDS",
    ),
    _machine(
        "gpus",
        _Text | None,
        "GPUs to plan for, such as '8x B200' or '8x96GB', or auto (default: those detected here)",
        metavar="GPUS",
    ),
    _machine(
        "tensor_parallel_size",
        _Degree | None,
        "GPUs that share every layer (embedded: processes on this machine)",
        {
            "embedded": "tensor_parallel_size",
            "vllm": "--tensor-parallel-size",
            "sglang": "--tp-size",
            "trtllm": "--tp_size",
        },
        common=True,
    ),
    _machine(
        "pipeline_parallel_size",
        _Degree | None,
        "groups of GPUs that each hold a part of the layers",
        {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size", "trtllm": "--pp_size"},
    ),
    _machine(
        "data_parallel_size",
        _Degree | None,
        "groups of GPUs that each hold the whole model and share the requests",
        {"vllm": "--data-parallel-size", "sglang": "--dp-size"},
    ),
    _machine(
        "decode_context_parallel_size",
        _Degree | None,
        "how many of the tensor-parallel GPUs divide every sequence's KV cache among them",
        {"embedded": "decode_context_parallel_size", "vllm": "--decode-context-parallel-size", "sglang": "--dcp-size"},
    ),
    _machine(
        "context_interleave",
        Annotated[int, Meta(ge=1, le=16)] | None,
        "how many tokens in a row each of these GPUs has of a divided KV cache: 1, 2, 4, 8 or 16 (default: 1)",
        {"embedded": "context_interleave"},
    ),
    _machine(
        "threads",
        Annotated[int, Meta(ge=1, le=1024)] | None,
        "CPU threads (default: the engine's choice; embedded: one for each core, but for one core of three or more)",
        {"embedded": "threads", "llama.cpp": "--threads"},
    ),
    _machine(
        "gpu_layers",
        Annotated[int, Meta(ge=0, le=1024)] | None,
        "how many layers llama.cpp puts on a GPU (default: as many as fit)",
        {"llama.cpp": "--gpu-layers"},
    ),
    _serving(
        "format",
        _Text,
        "how the model writes prompts and tool calls, such as kimi_k25 (default: detected)",
        {"vllm": "--tool-call-parser", "sglang": "--tool-call-parser", "trtllm": "--tool_parser"},
        common=True,
    ),
    _serving(
        "generic_tools",
        bool | None,
        "give a model whose chat template shows no tools its tools, calls and results as text, in a layout that most "
        "models know (default: yes)",
    ),
    _serving(
        "strict",
        Literal["off", "names", "schema"],
        "what calls are constrained to, unless the tool or the request says otherwise: nothing, tool names, or names "
        "and schemas (default: schema)",
        common=True,
    ),
    _serving(
        "strict_max_tokens",
        bool | None,
        "refuse a request for more new tokens than the context has room for, or than its key may ask for (default: no; "
        "they are cut, and x-dovetail-max-tokens says so)",
    ),
    _serving(
        "reasoning_budget",
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        "the most tokens of reasoning in an answer whose request sets no budget; embedded engine, or vLLM with a "
        "reasoning config (default: no limit)",
        metavar="N",
    ),
    _serving(
        "gate_override",
        bool | None,
        'let a request switch the gate off for itself, with "dovetail": {"gate": false} (default: yes)',
    ),
    _serving(
        "fixed_sampling",
        _Text | None,
        "values that requests may have in the sampling fields, the first as the default; others are refused. model: "
        "the checkpoint's values (default: none)",
        metavar="model|FIELD=VALUE[/VALUE][,…]",
        validate=_validate_fixed_sampling,
    ),
    _serving(
        "no_repair",
        str,
        "repairs to switch off, of the history and of calls without markup (default: none)",
        metavar="KIND[,KIND]|all",
        validate=_validate_repairs,
    ),
    _serving(
        "on_malformed_call",
        Literal["error", "text"],
        "what becomes of a call that cannot be read, unless the request says otherwise. error: a call with its text as "
        "the argument malformed_arguments. text: content (default: error)",
    ),
    _serving(
        "allow_silent",
        bool | None,
        "let answers end without content and calls, unless the request says otherwise (default: no)",
    ),
    _serving(
        "loops",
        Literal["report", "stop", "break", "off"] | None,
        "what becomes of answers that repeat themselves, unless the request says otherwise. report: a defect. stop: "
        "they end. break: their reasoning ends, outside of it they do. off: nothing (default: report)",
    ),
    _server(
        "response_store",
        _Text | None,
        "file in which /v1/responses stores responses, or none (default: ~/.cache/dovetail/responses.db)",
        metavar="FILE",
        path="file",
    ),
    _server(
        "response_store_count",
        _Count | None,
        "the most responses that are stored; then the oldest go (default: 100000)",
        metavar="N",
    ),
    _server(
        "response_store_size",
        _Bytes | None,
        "the most bytes of stored responses; then the oldest go (default: 1 GiB)",
        metavar="BYTES",
    ),
    _server(
        "response_store_age", _Days | None, "days after which a stored response goes (default: 30)", metavar="DAYS"
    ),
    _server(
        "memory",
        bool | None,
        "keep the tokens of answers, and put them back into the history of clients that return no records (default: "
        "yes)",
    ),
    _server(
        "memory_store",
        _Text | None,
        "file in which the tokens of answers are kept, or none (default: ~/.cache/dovetail/memory.db)",
        metavar="FILE",
        path="file",
    ),
    _server(
        "memory_store_count", _Count | None, "the most answers kept; then the oldest go (default: 500000)", metavar="N"
    ),
    _server(
        "memory_store_size",
        _Bytes | None,
        "the most bytes of kept answers; then the oldest go (default: 1 GiB)",
        metavar="BYTES",
    ),
    _server("memory_store_age", _Days | None, "days after which a kept answer goes (default: 7)", metavar="DAYS"),
    _server(
        "store",
        _Text | None,
        "server in which several gateways keep stored responses, memory and the use of keys: redis://HOST, "
        "rediss://HOST (TLS) or postgresql://HOST/DATABASE (default: $DOVETAIL_STORE, else files of this machine)",
        metavar="URL",
        validate=_validate_store,
    ),
    _server(
        "store_timeout",
        _Seconds | None,
        "seconds that a request waits for that server at most (default: 0.5)",
        metavar="SECONDS",
    ),
    _server(
        "record",
        _Text | None,
        "folder in which each request is recorded, texts included, for `dovetail explain` (default: none)",
        metavar="DIR",
        path="file",
    ),
    _server(
        "record_when",
        Literal["always", "requested"] | None,
        'which requests are recorded: all but those with "dovetail": {"recording": false}, or those with true '
        "(default: always)",
    ),
    _server("record_redact", bool | None, "record lengths in place of texts (default: no)"),
    _server("record_pictures", bool | None, "record the files of pictures too (default: no, their digests)"),
    _server(
        "record_count",
        _Count | None,
        "the most recordings in the folder; then the oldest go (default: 1000)",
        metavar="N",
    ),
    _server(
        "record_size",
        _Bytes | None,
        "the most bytes of recordings; then the oldest go (default: 1 GiB)",
        metavar="BYTES",
    ),
    _server("record_age", _Days | None, "days after which a recording goes (default: 7)", metavar="DAYS"),
    _serving(
        "served_model_name",
        _Text,
        "the name that clients call the model by (default: the folder's name, or the hub id)",
        {"vllm": "--served-model-name", "sglang": "--served-model-name"},
        common=True,
    ),
    _serving(
        "alias",
        _Text | None,
        "further name that clients may call the model by, such as haiku=NAME; * stands for any text",
        metavar="ALIAS=NAME",
        repeats=True,
        validate=_validate_aliases,
    ),
    _serving(
        "accept_any_model",
        bool | None,
        "serve the model under any name, because agents ask for several (default: no)",
    ),
    _server(
        "host",
        _Text,
        "address to listen on (default: 127.0.0.1)",
        {"vllm": "--host", "sglang": "--host", "trtllm": "--host"},
        metavar="HOST",
        common=True,
    ),
    _server(
        "port",
        Annotated[int, Meta(ge=1, le=65535)],
        "port to listen on (default: 8000)",
        {"vllm": "--port", "sglang": "--port", "trtllm": "--port"},
        metavar="PORT",
        common=True,
    ),
    _server(
        "api_key_file",
        _Text | None,
        "file with the key that clients must send",
        {"vllm": "VLLM_API_KEY", "sglang": "--api-key"},
        metavar="FILE",
        path="file",
        common=True,
    ),
    _server(
        "api_keys",
        _Text | None,
        "YAML file with named keys, each with limits of its own, read again on SIGHUP; `dovetail key new` makes keys",
        metavar="FILE",
        path="file",
    ),
    _server(
        "record_key_file",
        _Text | None,
        "file with the key that signs records of answers, the same for servers that share clients (default: a key "
        "that is made at the first start and kept)",
        metavar="FILE",
        path="file",
    ),
    _server(
        "allow_origin",
        _Text | None,
        "origin whose web pages may call the server from a browser, such as https://app.example, or * (default: none)",
        metavar="ORIGIN",
        repeats=True,
        validate=_validate_origins,
    ),
    _server(
        "image_urls",
        _Text | None,
        "host whose pictures are fetched for requests that name them by https URLs, such as images.example, or * for "
        "all with public addresses (default: none, pictures are sent as data: URLs)",
        metavar="HOST",
        repeats=True,
        validate=_validate_image_hosts,
    ),
    _server(
        "allow_host",
        _Text | None,
        "further name by which clients may call a server that listens on loopback and has no key, such as a proxy's",
        metavar="NAME",
        repeats=True,
    ),
    _server(
        "metrics_tools", bool | None, "show the names of clients' tools in /metrics, which needs no key (default: no)"
    ),
    _server(
        "log_format",
        Literal["plain", "json"] | None,
        "json: standard output has a JSON line for each request and each log record, and nothing else (default: plain, "
        "without lines for requests)",
    ),
    _server(
        "otlp_endpoint",
        _Text | None,
        "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request, such as "
        "http://localhost:4318 (default: what the environment variables OTEL_… say, else none)",
        metavar="URL",
        validate=_validate_collector,
    ),
    _server(
        "metrics_port",
        Annotated[int, Meta(ge=1, le=65535)] | None,
        "port for /metrics alone, on the same host; the port of the API has no such page then (default: none)",
        metavar="PORT",
    ),
    _serving("max_waiting", _Count | None, "requests that may wait for the engine (default: 1024)", metavar="N"),
    _serving(
        "max_waiting_tokens",
        _Count | None,
        "tokens of prompts that may wait for the engine (default: 8000000)",
        metavar="N",
    ),
    _serving(
        "queue_timeout",
        _Seconds | None,
        "seconds for which a request may wait for the engine (default: 600)",
        metavar="SECONDS",
    ),
    _server(
        "body_memory",
        Annotated[int, Meta(ge=1 << 23, le=1 << 50)] | None,
        "bytes of the bodies of all requests that are received or prepared at a time (default: 536870912)",
        metavar="BYTES",
    ),
    _server(
        "cache_salt",
        Literal["key", "off"] | None,
        "whose prompts share the engine's cache: key: of one key of --api-keys; off: of all (default: key)",
    ),
    _server(
        "max_messages",
        _Count | None,
        "messages that a request may have, with their parts, and tools (default: 10000)",
        metavar="N",
    ),
    _server(
        "max_connections",
        _Count | None,
        "the most connections at a time; one that waits makes room for a new one (default: 4096, or as many as the "
        "limit of open files allows)",
        metavar="N",
    ),
    _server(
        "header_timeout",
        _Seconds | None,
        "seconds in which the headers of a request must arrive (default: 60)",
        metavar="SECONDS",
    ),
    _server(
        "body_timeout",
        _Seconds | None,
        "seconds that may pass between two reads of a body (default: 60)",
        metavar="SECONDS",
    ),
    _server(
        "send_timeout",
        _Seconds | None,
        "seconds for which a client may not read its answer (default: 60)",
        metavar="SECONDS",
    ),
    _server(
        "keep_alive_timeout",
        _Seconds | None,
        "seconds for which a connection may wait for its next request (default: 75)",
        metavar="SECONDS",
    ),
    _server(
        "ssl_certfile",
        _Text | None,
        "PEM file with the server's certificate, and those up to its root: the server speaks HTTPS (default: HTTP)",
        metavar="FILE",
        path="file",
    ),
    _server(
        "ssl_keyfile",
        _Text | None,
        "PEM file with the private key of --ssl-certfile (default: it is in that file)",
        metavar="FILE",
        path="file",
    ),
    _server(
        "uds", _Text | None, "Unix socket to listen on, in place of --host and --port", metavar="PATH", path="file"
    ),
    _server(
        "uds_mode",
        _Text | None,
        "permissions of the Unix socket: who may write to it may connect (default: 600)",
        metavar="OCTAL",
        validate=_validate_mode,
    ),
    _server(
        "grace",
        _Seconds | None,
        "seconds that running answers have to end after SIGTERM or Ctrl-C (default: 30)",
        metavar="SECONDS",
    ),
)
BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
#: The gate and its limits -> what SGLang and TensorRT-LLM do with the command that a plan is written as.
GATE: Mapping[str, str] = {
    "gate": "drafts as much at every step by default",
    "max_draft_tokens": "drafts as much at every step by default",
    "speculate_below_context": "drafts at any length",
    "speculate_up_to_batch": "drafts in batches of any size by default",
}
_ALIASES = {alias: option.name for option in OPTIONS for alias in option.aliases}
_SPECULATIVE = "--speculative-config."
#: Member of vLLM's --speculative-config -> our setting.
_MEMBERS = {
    name.removeprefix(_SPECULATIVE): option.name
    for option in OPTIONS
    if (name := option.engine_names.get("vllm", "")).startswith(_SPECULATIVE)
}


def validated(values: Mapping[str, Any], where: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Check `values` and return them by today's names, with a note for every older name among them.

    Paths become absolute; relative ones start at `folder`. Raises `PlanError` naming `where` and the setting.
    """
    by_name, notes = translated(values, where, _ALIASES, _MEMBERS)
    for name in by_name:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, [*BY_NAME, *_ALIASES], n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; the settings are {', '.join(BY_NAME)}"
            raise PlanError(f"{where}: there is no setting {name!r:.80}{hint}")
    return {name: _validated(BY_NAME[name], value, where, folder) for name, value in by_name.items()}, notes


def _quoted(value: object) -> str:
    """`value` in a message, without the password in a URL."""
    return _PASSWORD.sub("…", repr(value))


def _validated(option: Option, value: Any, where: str, folder: Path) -> Any:
    if isinstance(value, str) and option.is_unset(value):
        value = None
    try:
        msgspec.convert(value, option.type)
        if isinstance(value, str) and "\0" in value:
            raise PlanError("it contains a NUL")
        if option.validate is not None and value is not None:
            option.validate(value)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise PlanError(f"{where}: {option.name} is {_quoted(value):.80}: {reason[:1].lower()}{reason[1:]}") from error
    except DovetailError as error:
        raise PlanError(f"{where}: {option.name} is {_quoted(value):.80}: {error.message}") from error
    if value is None or option.path is None:
        return value
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(value)))
    if option.path == "checkpoint" and hub.ID.fullmatch(value) and not os.path.exists(path):
        return value
    return path
