"""What a real vLLM cannot run: one message, an exit code of 2, and nothing left running."""

from __future__ import annotations

import socket
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.vllm import checkpoints
from tests.vllm.processes import dovetail, nothing_left, running, until


def refused(program: Path, *words: str | Path, **variables: str) -> str:
    """The one complaint about it."""
    server = dovetail(*words, "--engine", "vllm", "--vllm", program, "--context", "512", **variables)
    try:
        code = server.end()
    finally:
        server.kill()
    nothing_left()
    assert code == 2, server.printed
    assert "Traceback" not in server.printed
    complaints = [line for line in server.lines if line.startswith("dovetail: ")]
    assert len(complaints) == 1, server.printed
    return complaints[0]


def test_no_such_model(program: Path) -> None:
    assert "there is no folder org/nothing" in refused(program, "org/nothing")


def test_a_port_in_use(program: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = dovetail("--engine", "vllm", "--vllm", program, port=port)
        assert server.end() == 2
    assert f"dovetail: cannot listen on 127.0.0.1:{port}: Address already in use" in server.printed
    nothing_left()


def test_an_unknown_option(program: Path) -> None:
    complaint = refused(program, "--engine-args=--enforce-eagr")
    assert "vLLM has no --enforce-eagr: did you mean --enforce-eager or --no-enforce-eager?" in complaint


def test_not_enough_memory(program: Path) -> None:
    complaint = refused(program, "--engine-args=--enforce-eager", VLLM_CPU_KVCACHE_SPACE="9000")
    assert "Not enough memory: it needs less, or more to have: a shorter --context" in complaint


def test_a_drafter_for_another_model(program: Path, tmp_path: Path) -> None:
    """Its config fits, its weights do not."""
    drafter = checkpoints.eagle3(tmp_path)
    weights = load_file(drafter / "model.safetensors")
    weights["fc.weight"] = weights["fc.weight"][:, ::2].contiguous()
    save_file(weights, drafter / "model.safetensors")
    complaint = refused(program, drafter, "--format", "kimi_k25", "--engine-args=--enforce-eager")
    assert "loading the drafter, which may be another model's: --drafter none serves without it" in complaint


def test_killed_while_it_loads(program: Path) -> None:
    server = dovetail("--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager", "--context", "512")
    try:
        until(lambda: "loading weights" in server.printed, "the weights are being loaded", 300)
        assert len(running()) > 3, "Dovetail, the leash, the API server, the engine's core, a worker"
    finally:
        server.kill()
    nothing_left()
