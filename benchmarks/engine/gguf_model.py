"""A GGUF file as every engine loads it: a checkpoint folder, and a GGUF file in float32 for llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from safetensors.torch import save_file

from benchmarks.engine.shapes import endless
from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.engine.weights import inspect_target, load_tensors


def checkpoint(file: Path, folder: Path, *, published: bool) -> tuple[Path, Path]:
    """The checkpoint folder and the GGUF file, made below `folder` unless they are there.

    `published`: the weights are rounded to bfloat16, as checkpoints are published; else they are the file's own.
    """
    name = f"{file.stem}-{'bfloat16' if published else 'float32'}"
    whole, target = folder / f"{name}.gguf", folder / name
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = whole.with_suffix(".new")
        _in_float32(file, made, published=published)
        made.rename(whole)
    if not (target / "config.json").exists():
        found = inspect_target(Path(gguf_folder(whole)))
        dtype = torch.bfloat16 if published else torch.float32
        tensors = {
            name: tensor.to(dtype).contiguous() for name, tensor in load_tensors(found.tensors, found.tensors).items()
        }
        config = json.loads((found.path / "config.json").read_text())
        unused = config["vocab_size"] - 1
        endless(found.path, target, unused)
        (target / whole.name).unlink()
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target, whole


def _in_float32(file: Path, out: Path, *, published: bool) -> None:
    """Write the GGUF `file` with the same header and its tensors in float32."""
    reader = GGUFReader(file)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if published and weights.ndim > 1:
            weights = torch.from_numpy(weights).bfloat16().float().numpy()
        writer.add_tensor(tensor.name, weights, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
