"""GPUs: a table of kinds, the reader of texts such as "8x B200", and detection by nvidia-smi."""

from __future__ import annotations

import csv
import difflib
import os
import re
import subprocess

import msgspec

from dovetail.errors import PlanError

_MIB = 2**20


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU.

    `memory`: bytes, as the driver reports them. `size`: gigabytes, as the maker names them. `bandwidth`: bytes per
    second. `capability`: CUDA's compute capability, (12, 0) for SM120; None for AMD's GPUs and for unknown kinds.
    """

    name: str
    memory: int
    size: int
    capability: tuple[int, int] | None = None
    bandwidth: int | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """`count` GPUs of one kind."""

    gpu: Gpu
    count: int

    def __str__(self) -> str:
        return f"{self.count}x {self.gpu.name}"


def _kind(name: str, size: int, mib: int, capability: tuple[int, int] | None, gigabytes: int) -> Gpu:
    return Gpu(name=name, size=size, memory=mib * _MIB, capability=capability, bandwidth=gigabytes * 10**9)


#: Name, maker's GB, MiB as nvidia-smi or amd-smi prints them (less than the maker's GB), compute capability, GB/s.
#: Bandwidths are from the makers' data sheets (H100, H200, B200, RTX PRO 6000 Blackwell, A100, L40S, MI300X product
#: briefs), capabilities from https://developer.nvidia.com/cuda-gpus.
KINDS: tuple[Gpu, ...] = (
    _kind("H100", 80, 81559, (9, 0), 3350),
    _kind("H100 NVL", 94, 95830, (9, 0), 3900),
    _kind("H200", 141, 143771, (9, 0), 4800),
    _kind("H20", 96, 97871, (9, 0), 4000),
    _kind("GH200", 96, 97871, (9, 0), 4000),
    _kind("B200", 180, 183359, (10, 0), 8000),
    _kind("GB200", 186, 189471, (10, 0), 8000),
    _kind("B300", 288, 275040, (10, 3), 8000),
    _kind("RTX PRO 6000", 96, 97887, (12, 0), 1792),
    _kind("RTX 5090", 32, 32607, (12, 0), 1792),
    _kind("RTX 4090", 24, 24564, (8, 9), 1008),
    _kind("RTX 3090", 24, 24576, (8, 6), 936),
    _kind("RTX 6000 Ada", 48, 49140, (8, 9), 960),
    _kind("L40S", 48, 46068, (8, 9), 864),
    _kind("L4", 24, 23034, (8, 9), 300),
    _kind("A100 40GB", 40, 40960, (8, 0), 1555),
    _kind("A100 80GB", 80, 81920, (8, 0), 2039),
    _kind("A10G", 24, 23028, (8, 6), 600),
    _kind("MI300X", 192, 196592, None, 5300),
    _kind("MI325X", 256, 262128, None, 6000),
    _kind("MI355X", 288, 294896, None, 8000),
)
#: The driver reports at least this share of the maker's GB, taken as GiB (0.995 to 0.999 for the kinds up to 192).
_USABLE_SHARE = 0.99
_MAX_COUNT = 65536
_MAX_CHARACTERS = 80


def parse(text: str) -> Gpus:
    """Read "8x B200", "8xH100", "B200" or "8x96GB". Raises `PlanError` for other texts, with the nearest kinds."""
    match = None if len(text) > _MAX_CHARACTERS else re.fullmatch(r"(?:(\d+)\s*[xX×*]\s*)?(\S.*)", text.strip())
    count = int(match[1]) if match and match[1] and len(match[1]) < 9 else 1 if match and not match[1] else 0
    if match is None or not 1 <= count <= _MAX_COUNT:
        raise PlanError(f"gpus is {text!r:.80}: give a number and a kind, like '8x B200' or '8x96GB'")
    size = re.fullmatch(r"(\d{1,5}) ?G(?:i?B)?", match[2], re.IGNORECASE)
    if size and int(size[1]):
        return Gpus(gpu=_of_size(int(size[1])), count=count)
    kinds = _kinds_named(match[2])
    if len(kinds) != 1:
        near = difflib.get_close_matches(match[2].upper(), [kind.name.upper() for kind in KINDS], n=2, cutoff=0.5)
        meant = [kind.name for kind in kinds] or near
        hint = f"did you mean {' or '.join(meant)}?" if meant else f"known are {', '.join(k.name for k in KINDS)}."
        problem = "several kinds are" if kinds else "no kind is"
        raise PlanError(
            f"gpus is {text!r}: {problem} called {match[2]!r}; {hint} Name other kinds by memory, like '{count}x96GB'"
        )
    return Gpus(gpu=kinds[0], count=count)


def _of_size(gigabytes: int) -> Gpu:
    return Gpu(name=f"{gigabytes}GB GPU", size=gigabytes, memory=int(gigabytes * 2**30 * _USABLE_SHARE))


def _kinds_named(name: str) -> list[Gpu]:
    """The kinds that `name` may mean: those whose words it contains, else those whose names contain its words."""
    words = _words(name)
    contained = [kind for kind in KINDS if _words(kind.name) <= words]
    if contained:
        longest = max(len(_words(kind.name)) for kind in contained)
        return [kind for kind in contained if len(_words(kind.name)) == longest]
    return [kind for kind in KINDS if words and words <= _words(kind.name)]


_NOISE = frozenset(("nvidia", "amd", "geforce", "instinct", "tesla", "blackwell", "workstation", "server", "edition"))


def _words(name: str) -> frozenset[str]:
    """The words of a GPU's name that tell kinds apart: {"a100", "80gb"} for "NVIDIA A100-80GB"."""
    return frozenset(re.findall(r"[a-z0-9]+", name.lower())) - _NOISE


_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,compute_cap", "--format=csv,noheader,nounits")


def detect(*, timeout: float = 10.0) -> Gpus | None:
    """The GPUs of this machine within CUDA_VISIBLE_DEVICES; None without GPUs, or if nvidia-smi does not answer.

    GPUs of different memory count as equally many of the smallest, which is what a tensor-parallel engine can use.
    """
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    gpus: list[Gpu] = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for row in csv.reader(answer.stdout.splitlines(), skipinitialspace=True):
        if len(row) == 5 and row[3].strip().isdigit() and _is_visible(row[0], row[1], visible):
            gpus.append(_reported(row[2].strip(), int(row[3]) * _MIB, row[4].strip()))
    if not gpus:
        return None
    return Gpus(gpu=min(gpus, key=lambda gpu: gpu.memory), count=len(gpus))


def _is_visible(index: str, uuid: str, visible: str | None) -> bool:
    if visible is None:
        return True
    return any(
        device.strip() == index.strip() or (len(device.strip()) > 4 and uuid.strip().startswith(device.strip()))
        for device in visible.split(",")
    )


def _reported(name: str, memory: int, capability: str) -> Gpu:
    """The GPU that the driver reports, with the table's facts that the driver does not report."""
    known = min(_kinds_named(name), key=lambda kind: abs(kind.memory - memory), default=None)
    major, _, minor = capability.partition(".")
    return Gpu(
        name=known.name if known else name,
        memory=memory,
        size=known.size if known else round(memory / 2**30),
        capability=(int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        bandwidth=known.bandwidth if known else None,
    )
