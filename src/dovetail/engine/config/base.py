"""What every architecture's config is made of: bounded numbers, rotary positions, and how a wrong field is refused.

Field names are the files' own. Everything the engine cannot do is refused here, by the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from dovetail.errors import CheckpointError

_C = TypeVar("_C", list[Any], dict[str, Any])
_T = TypeVar("_T")
Size = Annotated[int, msgspec.Meta(ge=1)]
# Every layer's tensors are listed to look a checkpoint over; the largest known model has 126.
Layers = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class LinearScaling(msgspec.Struct, frozen=True, tag="linear", tag_field="rope_type"):
    """Every position divided by `factor`."""

    factor: Positive


class Llama3Scaling(msgspec.Struct, frozen=True, tag="llama3", tag_field="rope_type"):
    """Llama 3.1's stretching: long wavelengths by `factor`, short ones not, a ramp between the two."""

    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Size


class Yarn(msgspec.Struct, frozen=True, tag="yarn", tag_field="rope_type"):
    """YaRN context extension (https://arxiv.org/abs/2309.00071), with DeepSeek's two mscale fields."""

    factor: Positive
    original_max_position_embeddings: Size
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions: the base wavelength and, if any, how it is stretched."""

    theta: Positive
    scaling: LinearScaling | Llama3Scaling | Yarn | None = None


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all targets have; `cache_width` is how many numbers each layer caches for a token, `rotary_width` how many
    of a head's carry its position."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    max_position_embeddings: Size
    rope: Rope
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False

    @property
    def cache_width(self) -> int:
        raise NotImplementedError

    @property
    def rotary_width(self) -> int:
        raise NotImplementedError

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor the model is made of."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for i in range(self.num_hidden_layers):
            layer = f"model.layers.{i}."
            shapes[layer + "input_layernorm.weight"] = (self.hidden_size,)
            shapes[layer + "post_attention_layernorm.weight"] = (self.hidden_size,)
            shapes |= self._layer_tensors(i, layer)
        return shapes

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        """Attention and MLP of layer `index`, whose names start with `prefix`."""
        raise NotImplementedError


def field(raw: Mapping[str, Any], name: str, kind: type[_C], path: Path) -> _C:
    """A list or an object of the config; an empty one where the field is absent or null."""
    value = raw.get(name)
    if value is not None and not isinstance(value, kind):
        raise CheckpointError(
            f"{path}: {name} must be {'a list' if kind is list else 'an object'}, found {value!r:.80}"
        )
    return value or kind()


def only(raw: Mapping[str, Any], path: Path, **supported: object) -> None:
    """Refuse a field that is set to something the engine does not do. An absent field means the supported value."""
    for name, value in supported.items():
        found = raw.get(name)
        if found is not None and found != value:
            shown = "set" if isinstance(found, dict) else repr(found)
            raise CheckpointError(f"{path}: {name} is {shown}, which the embedded engine does not support")


def convert(raw: Mapping[str, Any], path: Path, kind: type[_T]) -> _T:
    """`raw` as a `kind`, its rotary positions under `rope`."""
    # An explicit null stands for the default, except where None is itself a value with a default of None.
    fields = {name: value for name, value in raw.items() if value is not None}
    fields["rope"] = _rope(raw, path)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}/config.json: {error}") from error


def _rope(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Both spellings: rope_theta with rope_scaling (checkpoints so far) and rope_parameters (transformers 5)."""
    declared = field(raw, "rope_parameters", dict, path) or field(raw, "rope_scaling", dict, path)
    only(declared, path, partial_rotary_factor=1.0)
    theta = declared.get("rope_theta", raw.get("rope_theta")) or 10000.0
    kind = declared.get("rope_type") or declared.get("type") or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise CheckpointError(f"{path}: rope type {kind!r} is not supported, only default, linear, llama3 and yarn")
    if kind == "default":
        return {"theta": theta}
    scaling = {name: value for name, value in declared.items() if value is not None} | {"rope_type": kind}
    if kind == "llama3" and scaling.get("low_freq_factor") == scaling.get("high_freq_factor"):
        raise CheckpointError(f"{path}: low_freq_factor and high_freq_factor must differ")
    return {"theta": theta, "scaling": scaling}


def mlp_tensors(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (width, hidden),
        prefix + "up_proj.weight": (width, hidden),
        prefix + "down_proj.weight": (hidden, width),
    }
