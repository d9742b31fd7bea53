"""What Dovetail reads of llama.cpp's server: how far its start is, and which error ended it.

The lines are from version 0.5.0 of it. tests/llama_cpp runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.backends.llama_cpp import LlamaServer, launch, version
from dovetail.errors import PlanError
from dovetail.plan import resolve
from dovetail.plan.llama_cpp import find
from tests.gguf_files import write

STARTED = """\
0.00.022.832 I srv  llama_server: initializing ...
0.00.039.158 I srv    load_model: loading model '/models/a.gguf'
0.00.736.080 I cmn          init: llama threadpool init, n_threads = 2
0.03.602.614 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 2048, kv_unified = 'false'
0.03.674.675 I srv  llama_server: model loaded
""".splitlines()
UNKNOWN_MODEL = """\
0.00.028.319 E llama_model_load: error loading model: unknown model architecture: 'olmo9'
0.00.028.354 E llama_model_load_from_file_impl: failed to load model
0.00.028.412 E common_fit_params: encountered an error while trying to fit params to free device memory: failed to load
0.00.028.691 E cmn  common_init_: failed to load model 'bad/arch.gguf'
0.00.028.757 I srv    operator(): operator(): cleaning up before exit...
0.00.031.584 E srv  llama_server: exiting due to model loading error"""
NEWER_FILE = """\
0.00.044.486 E gguf_init_from_reader: tensor 'blk.1.ffn_up.weight' has invalid ggml type 199. should be in [0, 43)
0.00.044.486 E gguf_init_from_reader: failed to read tensor info
0.00.044.497 E llama_model_load: error loading model: llama_model_loader: failed to load model from bad/type.gguf"""
OTHER_DRAFTER = """\
0.00.061.335 I common_speculative_init_result: loading draft model 'bad/arch.gguf'
0.00.061.537 E llama_model_load: error loading model: unknown model architecture: 'olmo9'
0.00.061.538 E common_speculative_init_result: failed to load draft model, 'bad/arch.gguf'"""


def test_a_start_has_phases() -> None:
    phases = [progress.phase for line in STARTED if (progress := LlamaServer().progress(line))]
    assert phases == ["load", "allocate", "allocate", "ready"]
    assert LlamaServer().failure(STARTED) is None
    assert LlamaServer().last(["", *STARTED])[-1] == "llama_server: model loaded"


@pytest.mark.parametrize(
    ("log", "error", "advice"),
    [
        (UNKNOWN_MODEL, "unknown model architecture: 'olmo9'", "This llama.cpp does not know the model"),
        (NEWER_FILE, "tensor 'blk.1.ffn_up.weight' has invalid ggml type 199", "This llama.cpp is older than the file"),
        (OTHER_DRAFTER, "unknown model architecture: 'olmo9'", "It was loading the drafter"),
        ("error: invalid argument: --frob", "invalid argument: --frob", "has other options than Dovetail uses"),
        ("0.1 E ggml_gallocr: cudaMalloc failed: out of memory", "cudaMalloc failed: out of memory", "Not enough mem"),
        ("a: error while loading shared libraries: libx.so: no such file", "error while loading shared", "broken"),
    ],
)
def test_the_error_is_the_first_one_and_says_what_to_do(log: str, error: str, advice: str) -> None:
    failure = LlamaServer().failure(log.splitlines())
    assert failure is not None and error in failure.error
    assert advice in " ".join(LlamaServer().advice(failure))


def test_the_plan_becomes_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "tiny.gguf")
    write(tmp_path / "small.gguf", seed=1)
    settings = {"engine": "llama.cpp", "context": 64, "max_batch": 3, "gpu_layers": 2, "threads": 5}
    settings["engine_args"] = "-fa on --mlock"
    plan = resolve(str(tmp_path / "tiny.gguf"), settings)
    started = launch(plan, "llama-server", "/tmp/a/engine.sock")
    words = " ".join(started.arguments)
    assert f"--model {tmp_path / 'tiny.gguf'} --ctx-size 192 " in words, "of all sequences together"
    assert "--parallel 3" in words and "--gpu-layers 2" in words and "--threads 5" in words
    assert " -fa on --mlock --metrics" in words, "options that are no settings here, before what Dovetail needs"
    with pytest.raises(PlanError, match=r"^engine_args is '-c 9' \(command line\): use the setting --context instead"):
        resolve(str(tmp_path / "tiny.gguf"), settings | {"engine_args": "-c 9"})
    assert words.endswith("--host /tmp/a/engine.sock") and "--spec" not in words
    assert started.environment["LLAMA_API_KEY"] == started.key and started.key not in words and not started.notes
    drafted = resolve(str(tmp_path / "tiny.gguf"), settings | {"method": "ngram", "draft_tokens": 6})
    words = " ".join(launch(drafted, "llama-server", "/tmp/a/engine.sock").arguments)
    assert "--spec-type ngram-simple --spec-ngram-simple-size-m 6" in words
    small = {"drafter": str(tmp_path / "small.gguf"), "method": "draft_model", "draft_tokens": 4}
    words = " ".join(launch(resolve(str(tmp_path / "tiny.gguf"), settings | small), "a", "/b.sock").arguments)
    assert f"--spec-type draft-simple --spec-draft-n-max 4 --spec-draft-model {tmp_path / 'small.gguf'}" in words


def test_a_program_that_is_no_llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="which is not a program"):
        find(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlanError, match=r"neither beside this Python nor on the PATH: install llama\.cpp, or name"):
        find(None)
    (tmp_path / "llama-server").write_text("#!/bin/sh\necho 'version: 0.5.0 (build 1)' >&2\n")
    (tmp_path / "llama-server").chmod(0o755)
    assert find(None) == str(tmp_path / "llama-server") and version(find(None)) == "0.5.0"
    (tmp_path / "llama-server").write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(PlanError, match=r"does not say which llama\.cpp it is"):
        version(find(None))
