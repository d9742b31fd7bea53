"""The engine for a GGUF file, and what the plan says of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import PlanError
from dovetail.plan import Plan, llama_cpp, resolve
from tests.gguf_files import write


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))


def installed(folder: Path) -> None:
    (folder / "llama-server").write_text("#!/bin/sh\n")
    (folder / "llama-server").chmod(0o755)


def notes(plan: Plan) -> str:
    return "\n".join(each.message for each in plan.advice)


def test_llama_cpp_if_it_is_here_else_the_embedded_engine_if_it_can(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", kind="Q8_0")
    plan = resolve(str(tmp_path / "tiny.gguf"), {})
    assert plan.value("engine") == "embedded" and "the weights become float32" in notes(plan)
    installed(tmp_path)
    plan = resolve(str(tmp_path / "tiny.gguf"), {})
    assert plan.value("engine") == "llama.cpp" and "runs the GGUF file as it is" in notes(plan)
    assert resolve(str(tmp_path / "tiny.gguf"), {"engine": "embedded"}).value("engine") == "embedded"


def test_an_architecture_that_only_llama_cpp_may_know(tmp_path: Path) -> None:
    write(tmp_path / "other.gguf", "olmo9")
    plan = resolve(str(tmp_path / "other.gguf"), {})
    assert plan.value("engine") == "llama.cpp"
    assert "llama.cpp is needed: " in notes(plan) and "Olmo9ForCausalLM" in notes(plan)
    assert "llama-server is not here" in notes(plan)
    with pytest.raises(PlanError, match=r"Olmo9ForCausalLM .* is not supported.*: --engine llama\.cpp"):
        resolve(str(tmp_path / "other.gguf"), {"engine": "embedded"})


def test_memory_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny.gguf")
    installed(tmp_path)
    plan = resolve(str(tmp_path / "tiny.gguf"), {})
    assert (plan.value("context"), plan.value("max_batch")) == (128, 4)
    assert plan.fit is not None and plan.fit.cache_per_token == 2 * 2 * 2 * 16 * 2, "float16"
    assert "(4 × 128 tokens × 256 bytes in float16)" in notes(plan)
    advice = [each.message for each in plan.advice_of("advice")]
    assert [each.partition(":")[0] for each in advice] == [
        "a drafter for this model (a smaller GGUF of its kind) saves steps of the target",
        "--method ngram drafts from earlier text, without a drafter",
    ]
    monkeypatch.setattr(llama_cpp, "machine_memory", lambda: 10_000)
    plan = resolve(str(tmp_path / "tiny.gguf"), {})
    assert "this machine has 0.0 GB: a smaller --context or --max-batch" in notes(plan)


def test_the_context_is_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny.gguf", metadata={"llama.context_length": 1 << 20})
    installed(tmp_path)
    weights = resolve(str(tmp_path / "tiny.gguf"), {}).fit.weights  # type: ignore[union-attr]
    monkeypatch.setattr(llama_cpp, "machine_memory", lambda: weights + 2 * 4 * 256 * 10_000)
    plan = resolve(str(tmp_path / "tiny.gguf"), {})
    assert plan.value("context") == 9 * 1024
    assert "context is 9,216: the KV cache of 4 sequences of 1,048,576" in notes(plan)
    assert resolve(str(tmp_path / "tiny.gguf"), {"context": 20_000}).value("context") == 20_000


def test_engines_that_do_not_read_it(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    with pytest.raises(PlanError, match=r"engine is vllm \(command line\), which does not read .*tiny\.gguf"):
        resolve(str(tmp_path / "tiny.gguf"), {"engine": "vllm"})
    with pytest.raises(PlanError, match=r"engine is llama\.cpp \(command line\), which reads GGUF files, and .*demo"):
        resolve(None, {"engine": "llama.cpp"})
