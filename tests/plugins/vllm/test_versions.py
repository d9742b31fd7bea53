"""Versions of vLLM, and the values of the environment variables."""

from __future__ import annotations

import subprocess

import pytest

from dovetail.errors import InvalidRequest, PlanError
from dovetail.formats import NAMES
from dovetail.plugins.vllm import names, versions
from tests.plugins.vllm.conftest import ROOT, environment


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1", "0.33.0rc1", "0.32.0+cpu"])
def test_versions_that_were_tested_are_taken(version: str) -> None:
    versions.check(version, "it")


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0", "0.3", "dev"])
def test_another_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(PlanError, match=rf"it works with vLLM 0\.32 and 0\.33, and this is vLLM {version}"):
        versions.check(version, "it")


_ANOTHER = """
import logging, sys
sys.path.insert(0, "src")
import vllm
logging.disable(logging.CRITICAL)
vllm.__version__ = "0.41.0"
from dovetail.plugins.vllm.register import register
register()
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.registry import RENDERER_REGISTRY
from vllm.tool_parsers import ToolParserManager
from vllm.utils.import_utils import resolve_obj_by_qualname
assert RENDERER_REGISTRY.renderers["hf"][0] == "vllm.renderers.hf"
assert ToolParserManager.get_tool_parser("hermes").__module__.startswith("vllm.")
for gone in ("vllm.entrypoints.generate.base.protocol", "vllm.v1.core.sched.async_scheduler"):
    sys.modules[gone] = None
for ask in (
    lambda: ToolParserManager.get_tool_parser("dovetail_kimi_k2"),
    lambda: ReasoningParserManager.get_reasoning_parser("dovetail_qwen3"),
    lambda: resolve_obj_by_qualname("dovetail.plugins.vllm.GatedScheduler"),
):
    try:
        ask()
    except Exception as error:
        print(error)
"""


def test_in_another_version_vllm_runs_and_only_what_is_ours_is_refused(python: str) -> None:
    """With the range, whatever has moved in that version."""
    done = subprocess.run([python, "-c", _ANOTHER], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()[-3:]
    for line, what in zip(messages, ("dovetail's parsers", "dovetail's parsers", "GatedScheduler"), strict=True):
        assert line.startswith(f"{what} works with vLLM 0.32 and 0.33, and this is vLLM 0.41.0")


def test_every_format_has_a_name() -> None:
    assert set(names.OWN) == {f"dovetail_{name}" for name in NAMES}


def test_overrides_are_a_list_or_all() -> None:
    assert names.overridden("") == ({}, {})
    tools, reasoning = names.overridden("kimi_k2, deepseek_v32")
    assert tools == {"kimi_k2": ("kimi_k2", "kimi_k2_thinking", "kimi_k25"), "deepseek_v32": ("deepseek_v32",)}
    assert reasoning == {"kimi_k2": ("kimi_k2_thinking", "kimi_k25")}
    assert names.overridden("all") == (dict(names.TOOL_PARSERS), dict(names.REASONING_PARSERS))
    with pytest.raises(PlanError, match="DOVETAIL_VLLM_OVERRIDE names 'kimi'; it may hold all, or some of"):
        names.overridden("kimi")


def test_repairs_that_are_left_out_are_kinds_of_repair() -> None:
    assert names.repairs_off("") == frozenset()
    assert names.repairs_off("call_id") == {"call_id"}
    with pytest.raises(InvalidRequest, match="there is no repair 'ids'"):
        names.repairs_off("ids")


def test_calls_that_cannot_be_read_are_errors_or_text() -> None:
    assert names.on_malformed_call("") == names.on_malformed_call(" error ") == "error"
    assert names.on_malformed_call("text") == "text"
    with pytest.raises(PlanError, match="DOVETAIL_VLLM_ON_MALFORMED_CALL is 'drop'; it may be error or text"):
        names.on_malformed_call("drop")
