"""The engines' own argument parsers accept every command (in environments that `make check-emitted` makes)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.checkpoints import hub
from dovetail.errors import CheckpointError
from dovetail.formats.registry import NAMES
from dovetail.plan import resolve
from dovetail.plan.emit import Command, sglang, vllm
from dovetail.plan.options import OPTIONS
from tests.checkpoints.configs import DEEPSEEK_V32, KIMI_EAGLE3_MLA, KIMI_K25, QWEN3_8B, QWEN3_8B_EAGLE3, write
from tests.formats.chat_templates import QWEN3, SMALL_CONTROLS
from tests.formats.test_registry import checkpoint
from tests.plan.emit_plans import DRAFTING, RECIPES, Settings, settings_of
from tests.plan.samples import SAMPLES


def judged(python: str, engine: str, commands: Mapping[str, Mapping[str, Command]]) -> None:
    """Let the engine that `python` imports judge those `commands` that are for its version (version -> name -> one)."""
    cases = {
        version: {name: {"argv": one.argv, "variables": list(one.variables)} for name, one in named.items()}
        for version, named in commands.items()
    }
    script = Path(__file__).with_name("accepts.py")
    done = subprocess.run([python, str(script), engine], input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    wrong = {name: verdict for name, verdict in json.loads(done.stdout).items() if verdict is not None}
    assert wrong.pop("no such flag", None), "a parser that takes everything"
    assert wrong == {}


#: What a hub of our own has, of what recipes name; they know enough of all others.
ON_THE_HUB = {
    "deepseek-ai/DeepSeek-V3.2": DEEPSEEK_V32,
    "moonshotai/Kimi-K2.5": KIMI_K25,
    "lightseekorg/kimi-k2.5-eagle3-mla": KIMI_EAGLE3_MLA,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "RedHatAI/Qwen3-8B-FP8-dynamic": QWEN3_8B,
    "RedHatAI/Qwen3-8B-speculator.eagle3": QWEN3_8B_EAGLE3,
}


def resolved() -> dict[str, Settings]:
    """What `dovetail plan` makes of every recipe, and of the demo pair on vLLM."""

    def fetch(name: str, *, revision: str | None = None) -> str:
        if name not in ON_THE_HUB:
            raise CheckpointError(f"{name} cannot be fetched")
        written = Path(write(Path(folder, name), ON_THE_HUB[name]))
        template = QWEN3 if ON_THE_HUB[name] is QWEN3_8B else None
        return str(checkpoint(written, *SMALL_CONTROLS, template=template) if template else written)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "fetch", fetch)
        made = {name: resolve(None, {}, recipe=name) for name in RECIPES if name != "demo"}
        made["demo"] = resolve(None, {}, engine="vllm")
    return {f"resolved {name}": one.command_settings for name, one in made.items()}


def plans() -> dict[str, Settings]:
    """Every recipe, alone and resolved, every sample of every setting beside a drafter, and all settings at once."""
    plans_by_name = RECIPES | resolved()
    for option in OPTIONS:
        for value in SAMPLES[option.name]:
            plans_by_name[f"{option.name} {value}"] = DRAFTING | settings_of(**{option.name: value})
    for name in NAMES:
        plans_by_name[f"format {name}"] = settings_of(format=name)
    drawn = {"draft_sampling": "probabilistic", "draft_tokens": 7, "gpus": "8x B200"}
    for method, gate in (("dspark", "off"), ("dspark", "measured"), ("eagle3", "measured"), ("ngram", "measured")):
        drafter = None if method == "ngram" else "a/drafter"
        plans_by_name[f"{method}, gate {gate}"] = settings_of(method=method, drafter=drafter, gate=gate, **drawn)
    for i in (0, 1):
        plans_by_name[f"everything {i}"] = settings_of(**{name: values[i] for name, values in SAMPLES.items()})
    return plans_by_name


def pythons(variable: str) -> list[Any]:
    """The Pythons that the variable names, or one that skips the test."""
    reason = f"{variable} names no Python with the engine (make check-emitted makes one and runs this)"
    named = [path for path in os.environ.get(variable, "").split(os.pathsep) if path]
    return named or [pytest.param("", marks=pytest.mark.skip(reason))]


def with_a_bad_one(commands: dict[str, Command]) -> dict[str, Command]:
    some = next(iter(commands.values()))
    return commands | {"no such flag": msgspec.structs.replace(some, arguments=(*some.arguments, ("--no-such", "1")))}


@pytest.mark.parametrize("python", pythons("DOVETAIL_VLLM_PYTHON"))
def test_vllms_own_parser_takes_every_command(python: str) -> None:
    commands = {
        version: with_a_bad_one({name: vllm.command(plan, version) for name, plan in plans().items()})
        for version in vllm.VERSIONS
    }
    judged(python, "vllm", commands)


@pytest.mark.parametrize("python", pythons("DOVETAIL_SGLANG_PYTHON"))
def test_sglangs_own_parser_takes_every_command(python: str) -> None:
    commands = {"0.5": with_a_bad_one({name: sglang.command(plan) for name, plan in plans().items()})}
    judged(python, "sglang", commands)
