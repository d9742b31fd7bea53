"""Stands for SGLang's own kernels, which PyPI has for GPUs only. SGLang imports them; on a CPU it computes by torch.

Whatever is asked for is there, and raises when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class _Kernel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name} is for a GPU")

    def __getattr__(self, name: str) -> _Kernel:
        return _kernel(f"{self._name}.{name}")


def _kernel(name: str) -> _Kernel:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(name)
    return _Kernel(name)


class _Modules:
    """Finds every module below this one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: _kernel(f"{spec.name}.{name}")  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def __getattr__(name: str) -> _Kernel:
    return _kernel(f"{__name__}.{name}")


sys.meta_path.append(_Modules())  # type: ignore[arg-type]
