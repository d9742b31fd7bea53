"""How a checkpoint stores quantized weights, from quantization_config or from ModelOpt's hf_quant_config.json."""

from __future__ import annotations

import fnmatch
import re
import warnings
from functools import lru_cache

import msgspec

from dovetail.checkpoints.fields import Fields

# Limits of the list of modules that stay unquantized: entries, entries with wildcards, and the characters of all
# regular expressions together, which is also the limit of one entry.
_MOST_IGNORED, _MOST_WILDCARDS, _MOST_CHARACTERS = 100_000, 10_000, 2000
_MOST_REPETITIONS = 5


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored. `kind` is the common word (int4, fp8, nvfp4, mxfp4, int8), `method` the config's own.

    `block`: rows and columns of weights that share a scale; a shard must hold whole blocks. `group`: columns that share
    a scale. `ignored` names the modules that are not quantized, by name, by a regular expression after ``re:``
    (compressed-tensors), or with wildcards (ModelOpt).
    """

    method: str
    kind: str
    bits: int
    group: int | None = None
    block: tuple[int, ...] | None = None
    ignored: tuple[str, ...] = ()
    kv_cache: str | None = None

    def covers(self, module: str) -> bool:
        """Whether the module called `module` is quantized."""
        parts = module.split(".")
        names = {".".join(parts[: i + 1]) for i in range(len(parts))}
        return names.isdisjoint(self.ignored) and not any(_matches(each, module) for each in _patterns(self.ignored))

    def bits_of(self, module: str, unquantized: float) -> float:
        """Bits per weight of a module, its scales included. `unquantized`: bits per weight of an ignored module."""
        if not self.covers(module):
            return unquantized
        # int4 has 16-bit scales, the FP4 kinds 8-bit ones; scales of whole blocks are too few to count.
        scale = {"nvfp4": 8, "mxfp4": 8, "int4": 16}.get(self.kind, 0)
        return self.bits + (scale / self.group if self.group and scale else 0)


def read_quantization(fields: Fields) -> Quantization | None:
    """Reads a `quantization_config`, or the whole of hf_quant_config.json; None when it is empty."""
    if not fields.raw:
        return None
    modelopt = fields.block("quantization")
    if modelopt is not None:
        fields = modelopt
    method = (fields.text("quant_method") or ("modelopt" if modelopt is not None else "")).replace("_", "-").lower()
    algorithm = (fields.text("quant_algo") or "").upper()
    cache = fields.text("kv_cache_quant_algo") or ("fp8" if fields.raw.get("kv_cache_scheme") else None)
    if algorithm or method.startswith("modelopt"):
        weights = _modelopt(algorithm or method.upper(), fields)
    elif method == "compressed-tensors":
        weights = _compressed_tensors(fields)
    elif method in ("fp8", "fbgemm-fp8"):
        weights = Quantization(method=method, kind="fp8", bits=8, block=fields.numbers("weight_block_size"))
    elif method == "mxfp4":
        weights = Quantization(method=method, kind="mxfp4", bits=4, group=32)
    else:
        width = 4 if fields.flag("load_in_4bit") else fields.number("bits", "num_bits") or 8
        group = fields.number("group_size") if fields.raw.get("group_size") != -1 else None
        weights = Quantization(method=method or "unnamed", kind=f"int{width}", bits=width, group=group)
    return msgspec.structs.replace(weights, ignored=_ignored(fields), kv_cache=cache.lower() if cache else None)


def _modelopt(algorithm: str, fields: Fields) -> Quantization:
    for word, kind, width in (("NVFP4", "nvfp4", 4), ("FP4", "nvfp4", 4), ("W4A", "int4", 4), ("INT4", "int4", 4)):
        if word in algorithm:
            return Quantization(method="modelopt", kind=kind, bits=width, group=fields.number("group_size") or 16)
    return Quantization(method="modelopt", kind="fp8" if "FP8" in algorithm else algorithm.lower(), bits=8)


def _compressed_tensors(fields: Fields) -> Quantization:
    groups = fields.block("config_groups")
    first = next(iter(groups.raw), None) if groups is not None else None
    block = groups.block(first) if groups is not None and first is not None else None
    weights = block.block("weights") if block is not None else None
    if weights is None:
        raise fields.error("compressed-tensors without config_groups does not declare how weights are stored")
    width = weights.number("num_bits") or 8
    kind = f"int{width}" if (weights.text("type") or "int") == "int" else f"fp{width}"
    if kind == "fp4":
        kind = "mxfp4" if "mxfp4" in (fields.text("format") or "") else "nvfp4"
    return Quantization(
        method="compressed-tensors",
        kind=kind,
        bits=width,
        group=weights.number("group_size"),
        block=weights.numbers("block_structure") if isinstance(weights.raw.get("block_structure"), list) else None,
    )


def _ignored(fields: Fields) -> tuple[str, ...]:
    """Names and patterns of unquantized modules, all of which compile and match in bounded time."""
    names = ("ignore", "exclude_modules", "modules_to_not_convert")
    ignored = tuple(dict.fromkeys(str(each) for name in names for each in fields.items(name) or ()))
    expressions = [each[3:] for each in ignored if each.startswith("re:")]
    wildcards = [each for each in ignored if _wildcard(each) and not each.startswith("re:")]
    for what, size, most in (
        ("modules", len(ignored), _MOST_IGNORED),
        ("modules with wildcards", len(wildcards), _MOST_WILDCARDS),
        ("characters in one of them", max(map(len, ignored), default=0), _MOST_CHARACTERS),
        ("characters of regular expressions", sum(map(len, expressions)), _MOST_CHARACTERS),
    ):
        if size > most:
            raise fields.error(f"ignore has {size} {what}, at most {most} are supported")
    for each in expressions:
        try:
            _compiled(each)
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise fields.error(f"ignore has the regular expression {each!r:.80}: {error}") from error
    return ignored


_wildcard = re.compile(r"[*?\[]").search


@lru_cache(maxsize=8)
def _patterns(ignored: tuple[str, ...]) -> tuple[str, ...]:
    """The entries that are not plain names. Most lists have few, and every module asks for them."""
    return tuple(each for each in ignored if each.startswith("re:") or _wildcard(each))


def _matches(ignored: str, module: str) -> bool:
    if ignored.startswith("re:"):
        return _compiled(ignored[3:]).match(module) is not None
    return fnmatch.fnmatchcase(module, ignored)


_ESCAPES_AND_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@lru_cache(maxsize=256)
def _compiled(expression: str) -> re.Pattern[str]:
    """Raises `ValueError` for an expression that could take exponential time.

    Python's `re` backtracks. Few repetitions, none of them of a group, keep its time a small power of the length of a
    module's name.
    """
    structure = _ESCAPES_AND_CLASSES.sub("x", expression)
    if re.search(r"\)[*+{]", structure):
        raise ValueError("a repeated group is not supported, because matching it can take exponential time")
    if len(re.findall(r"(?<!\()[*+?{]", structure)) > _MOST_REPETITIONS:
        raise ValueError(f"more than {_MOST_REPETITIONS} repetitions are not supported")
    with warnings.catch_warnings(action="ignore"):  # of character sets that may change their meaning in later Pythons
        return re.compile(expression)
