"""The GPU that is measured."""

from __future__ import annotations

import torch

from dovetail.errors import EngineError


def gpu() -> tuple[str, str]:
    """The GPU's architecture and name. Raises `EngineError` if torch sees no NVIDIA GPU."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise EngineError("tune --measure needs a GPU of NVIDIA's, and torch sees none here: leave --measure out")
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}", torch.cuda.get_device_name()
