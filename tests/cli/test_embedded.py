"""The embedded engine gets the settings of the plan, and acts on them."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from rich.console import Console

from dovetail.backends import embedded
from dovetail.checkpoints.cache_folder import cache_folder
from dovetail.cli import serve
from dovetail.cli.embedded_engine import LoadingBar, engine_settings
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.plan import Plan, resolve
from dovetail.plan.defaults import expected_acceptance
from dovetail.plan.options import OPTIONS
from dovetail.tokens import tokenizer
from tests.cli.test_serve import free_port, serving
from tests.engine import checkpoints
from tests.examples import slow_but
from tests.plan.pair import VOCABULARY


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[tuple[Any, ...], EngineSettings, LLMCore]]]:
    """Of every core: target, drafter, tokenizer; its settings; the core."""
    seen: list[tuple[tuple[Any, ...], EngineSettings, LLMCore]] = []

    class Recorded(LLMCore):
        @classmethod
        def load(cls, *arguments: Any) -> Any:
            seen.append((arguments[:3], arguments[3], LLMCore.load(*arguments)))
            return seen[-1][2]

    monkeypatch.setattr(embedded, "LLMCore", Recorded)
    yield seen


def start(plan: Plan) -> None:
    async def main() -> None:
        app, _ = serve.embedded_app(plan)
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(main())


#: Settings of a plan -> what the engine's settings are besides these and the defaults.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"draft_tokens": 2, "max_batch": 4, "context": 512}, {}),
    ({"dtype": "bfloat16", "threads": 1}, {}),
    ({"draft_sampling": "greedy", "gate": "measured", "max_draft_tokens": 5}, {}),
    ({"gate": "off"}, {"cost_folder": None}),
    ({"speculate_below_context": 700, "speculate_up_to_batch": 4, "async_scheduling": False}, {}),
    ({"max_batched_tokens": 64, "prefix_caching": False, "chunked_prefill": True}, {}),
    ({"chunked_prefill": False, "max_batch": 2, "context": 64}, {"max_batched_tokens": 128}),
    ({"kv_cache_memory_bytes": 10**7}, {}),
    ({"kv_cache_dtype": "bfloat16", "attention_backend": "sdpa"}, {}),
    ({"kv_cache_dtype": "bfloat16", "draft_kv_cache_dtype": "auto", "draft_attention_backend": "matmul"}, {}),
    ({"quantization": "int8"}, {}),
    ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "context_interleave": 4}, {}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_engines_settings_are_those_of_the_plan(cache: Path, case: int) -> None:
    options, more = CASES[case]
    plan = resolve(None, options)
    assert plan.value("engine") == "embedded" and not plan.advice_of("warning")
    resolved = {name: plan.value(name) for name in ("max_batch", "context", "draft_tokens", "max_draft_tokens")}
    expected: dict[str, Any] = resolved | {"gate": "measured", "cost_folder": cache / "dovetail" / "costs"}
    expected["acceptance"] = None if options.get("gate") == "off" else expected_acceptance(plan.settings)
    expected |= {name: value for name, value in options.items() if name != "chunked_prefill"} | more
    assert engine_settings(plan) == EngineSettings(**expected)
    table = {name: plan.settings[name] for name in options}
    assert all((setting.value, setting.source) == (options[name], "command line") for name, setting in table.items())


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("case", slow_but((0, 1, 2, 10, 11, 12), 0, 1, 2))
def test_the_engine_starts_with_the_settings_of_the_plan(made: list[Any], case: int) -> None:
    plan = resolve(None, CASES[case][0])
    start(plan)
    [(arguments, settings, core)] = made
    assert settings == engine_settings(plan)
    assert arguments[:2] == (Path(plan.folders["target"]), Path(plan.folders["drafter"]))
    most = plan.value("max_draft_tokens") or plan.value("draft_tokens")
    assert (core.info.context, core.info.draft_tokens) == (plan.value("context"), most)


def test_every_engine_setting_is_a_setting_of_the_plan_and_tried_here() -> None:
    words = {option.name: option.engine_names["embedded"] for option in OPTIONS if "embedded" in option.engine_names}
    apart = {"target", "drafter", "method", "chunked_prefill"}
    not_chosen = {"acceptance", "cost_folder", "kernels", "rank_deadline"}
    assert words.keys() - apart == {field.name for field in fields(EngineSettings)} - not_chosen
    assert all(words[name] == name for name in words.keys() - apart)
    assert words.keys() - {"target", "drafter", "method"} == {name for options, _ in CASES for name in options}


def test_the_gate_begins_with_the_recipes_acceptance() -> None:
    gated, fixed = (resolve(None, {"engine": "embedded", "gate": gate}) for gate in ("measured", "off"))
    assert engine_settings(gated).acceptance == expected_acceptance(gated.settings) is not None
    assert engine_settings(fixed).acceptance is None


def test_cost_files_are_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve(None, {"engine": "embedded"})

    def costs() -> Path | None:
        return engine_settings(plan).cost_folder

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert costs() == tmp_path / "cache" / "dovetail" / "costs"
    for none in ("", "relative/to/nothing"):  # neither counts, by the specification
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert costs() == tmp_path / "home" / ".cache" / "dovetail" / "costs"
    start(plan)
    assert len(list((tmp_path / "home" / ".cache" / "dovetail" / "costs").iterdir())) == 1


def test_the_engine_starts_without_a_cache_folder(
    made: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no writable home folder, and the system knows none for this user."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    start(resolve(None, {"engine": "embedded"}))
    assert made[0][1].cost_folder is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_folder("costs") is None
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31)  # of whom the system knows nothing
    assert cache_folder("costs") is None


@pytest.mark.parametrize(
    ("options", "drafter", "tokens"),
    [
        ({}, "lookup", 5),
        ({"method": "suffix", "draft_tokens": 8}, "lookup", 8),
        ({"draft_tokens": 2}, "lookup", 2),
        ({"method": "mtp"}, "mtp", 1),
        ({"method": "mtp", "draft_tokens": 3}, "mtp", 3),
        ({"drafter": "none"}, None, 0),
        ({"method": "none"}, None, 0),
        ({"draft_tokens": 0}, None, 0),
        ({"method": "mtp", "draft_tokens": 0}, None, 0),
    ],
    ids=str,
)
def test_the_plans_drafter_is_the_engines(
    made: list[Any], tmp_path: Path, small_tokenizer_file: Path, options: dict[str, Any], drafter: Any, tokens: int
) -> None:
    target = checkpoints.write_mtp_target(tmp_path / "target", vocab_size=VOCABULARY)
    shutil.copy(small_tokenizer_file, target / "tokenizer.json")
    plan = resolve(str(target), {"format": "kimi_k25"} | options)
    assert plan.value("engine") == "embedded"
    start(plan)
    [(arguments, settings, core)] = made
    most = 8 if tokens and "draft_tokens" not in options else tokens  # an explicit draft_tokens is a limit
    assert (arguments[1], settings.draft_tokens, core.info.draft_tokens) == (drafter, tokens, most)


def test_a_draft_model_drafts(made: list[Any], tmp_path: Path, small_tokenizer_file: Path) -> None:
    target = checkpoints.write_llama(tmp_path / "target", vocab_size=VOCABULARY)
    small = checkpoints.write_llama(tmp_path / "small", vocab_size=VOCABULARY, num_hidden_layers=1)
    shutil.copy(small_tokenizer_file, target / "tokenizer.json")
    plan = resolve(str(target), {"drafter": str(small), "format": "kimi_k25"})
    assert (plan.value("engine"), plan.value("method"), plan.value("draft_tokens")) == ("embedded", "draft_model", 3)
    start(plan)
    assert made[0][0][:2] == (target, small)


@pytest.mark.slow
def test_a_target_alone_drafts_by_lookup(tmp_path: Path, small_tokenizer_file: Path) -> None:
    eos = tokenizer(small_tokenizer_file).control["<|im_end|>"]
    target = checkpoints.write_llama(tmp_path / "llama", vocab_size=VOCABULARY, eos_token_id=eos)
    shutil.copy(small_tokenizer_file, target / "tokenizer.json")
    port = free_port()
    with serving(port, target, "--format", "kimi_k25", "--gate", "off") as child:  # what pays depends on the machine
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
            request: dict[str, Any] = {
                "model": "llama",
                "messages": [{"role": "user", "content": "the city Paris, " * 8}],
                "max_tokens": 96,
                "temperature": 0,
            }
            drafted = client.chat.completions.create(**request)
            plain = client.chat.completions.create(**request, extra_body={"dovetail": {"draft_tokens": 0}})
        numbers = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        child.send_signal(signal.SIGINT)
        printed, complaints = child.communicate(timeout=30)
    assert (child.returncode, complaints) == (0, "")
    assert "llama on the embedded engine, suffix drafts 5 a step" in printed
    assert drafted.choices[0].message.content == plain.choices[0].message.content
    speculation = drafted.usage.speculation  # type: ignore[union-attr]
    assert speculation["drafted"] >= speculation["accepted"] > 0
    assert speculation["steps"] < drafted.usage.completion_tokens  # type: ignore[union-attr]
    assert plain.usage.speculation["drafted"] == 0  # type: ignore[union-attr]
    assert "# HELP dovetail_engine_preemptions_total Requests that gave their KV cache up to others" in numbers
    cached = re.search(r"^dovetail_engine_prompt_tokens_cached_total\S* (\S+)$", numbers, re.MULTILINE)
    assert cached is not None and float(cached[1]) > 0, "the second prompt equals the first"
    drafts = 'dovetail_engine_drafted_per_position_total{context="0",drafter='
    assert any(line.startswith(drafts) and 'position="0"' in line for line in numbers.splitlines())
    assert 'dovetail_engine_gate_decisions_total{model="llama",reason="draft"} ' in numbers
    assert 'dovetail_engine_gate_decisions_total{model="llama",reason="request"} ' in numbers, "by the second request"


def test_the_loading_bar_is_shown_on_a_terminal_only() -> None:
    pages = []
    for terminal in (True, False):
        shown = io.StringIO()
        loading = LoadingBar(Console(file=shown, force_terminal=terminal, width=80))
        with loading:
            loading(5 * 10**8, 10**9)
        pages.append(shown.getvalue())
    assert "loading" in pages[0] and "0.5/1.0 GB" in pages[0]
    assert pages[1] == ""


def test_progress_counts_every_byte_of_the_target(pair: Path) -> None:
    reports: list[tuple[int, int]] = []

    async def main() -> None:
        app, _ = serve.embedded_app(resolve(str(pair / "target"), {}), progress=lambda *read: reports.append(read))
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(main())
    done, totals = [each[0] for each in reports], {each[1] for each in reports}
    assert done == sorted(done) and {done[-1]} == totals


def test_an_unsupported_value_is_refused_before_torch_is_imported(pair: Path) -> None:
    command = (
        "import sys; from dovetail.cli.main import main\n"
        f"code = main(['serve', {str(pair / 'target')!r}, '--engine', 'embedded', '--quantization', 'awq'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 False\n"
    assert "quantization is awq (command line) and the embedded engine has int8: --engine vllm" in done.stderr
