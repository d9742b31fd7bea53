"""Advice for known errors of vLLM, in words."""

from __future__ import annotations

import difflib
import re

_MEMORY = (
    "use less, or have more: a shorter --context, a smaller --max-batch, --kv-cache-dtype fp8, more GPUs "
    "(--tensor-parallel-size), or another --gpu-memory-utilization (higher, or lower if others use the GPU)"
)
#: (pattern in the error, advice).
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"out of memory|OutOfMemory|not enough (?:GPU )?memory|No available memory for the cache|"
        r"larger than the available KV cache|is less than (?:desired|requested)|Cannot allocate memory|"
        r"can't allocate memory|exceed the desired GPU memory|MemoryError",
        f"not enough memory: {_MEMORY}",
    ),
    (
        r"[Gg]ated|40[13] (?:Client Error|Forbidden|Unauthorized)|restricted",
        "no access: accept the model's terms at the hub and log in (`hf auth login`, or HF_TOKEN)",
    ),
    (
        r"[Rr]epository [Nn]ot [Ff]ound|Invalid repository ID|not a valid model identifier|is not a local folder",
        "no such model: check the spelling, or give a checkpoint's folder",
    ),
    (
        r"InvalidHeader|HeaderTooLarge|HeaderTooSmall|MetadataIncompleteBuffer|incomplete metadata|"
        r"not initialized from (?:the )?checkpoint|SafetensorError|Cannot find any model weights",
        "incomplete checkpoint: a file of its weights is missing or truncated, download it again",
    ),
    (
        r"[Aa]ddress already in use",
        "a port is in use already: end the process that listens there",
    ),
    (
        r"trust_remote_code|trust-remote-code",
        "the checkpoint contains its own code: --trust-remote-code lets it run",
    ),
    (
        r"architectures? .*(?:not supported|failed to be inspected)|does not recognize this architecture",
        "this version of vLLM does not support the model: a newer one may",
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|no NVIDIA driver|libcuda",
        "vLLM finds no GPU here",
    ),
    (
        r"No module named 'dovetail|dovetail\.plugins\.vllm",
        "the gate runs inside vLLM: pip install dovetail into vLLM's environment, or leave the gate's settings out",
    ),
    (
        r"No module named|cannot import name|undefined symbol|ImportError",
        "the installation of vLLM is broken: pip install --force-reinstall it in an environment of its own",
    ),
)
_DRAFTER = "it was loading the drafter, which may belong to another model: --drafter none serves without it"
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.+)")


def advice(error: str, *, drafter: bool = False) -> str | None:
    """What to do about `error`; None if unknown. `drafter`: the drafter was being loaded."""
    for pattern, hint in _KNOWN:
        if re.search(pattern, error):
            return hint
    return _DRAFTER if drafter else None


def unknown(error: str) -> list[str]:
    """The options in vLLM's error about unknown options; none if the error is another one."""
    match = _UNKNOWN.search(error)
    return [] if match is None else [word for word in match["words"].split() if word.startswith("--")]


def nearest(option: str, known: list[str]) -> str | None:
    """The question "did you mean --a or --b?" with the most similar `known` options; None if none is similar."""
    near = difflib.get_close_matches(option.partition("=")[0], known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else None
