"""Two real vLLM behind one gateway: one with a LoRA adapter, which is a model here, and one with embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from tests.cli.test_serve import free_port
from tests.vllm import checkpoints, processes
from tests.vllm.processes import Process


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("checkpoint"))


def adapter(target: Path) -> Path:
    """A LoRA adapter in PEFT's form, which changes every answer."""
    folder, config = target.parent / "adapter", json.loads((target / "config.json").read_text())
    folder.mkdir()
    rank, hidden, made = 8, config["hidden_size"], torch.Generator().manual_seed(0)
    width = config["num_attention_heads"] * config["head_dim"]
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, hidden, generator=made)
        weights[f"{name}.lora_B.weight"] = torch.randn(width, rank, generator=made)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 64, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def servers(program: Path, target: Path) -> Iterator[list[Process]]:
    """The vLLM that writes, the one with embeddings, and the gateway."""
    writes = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"sql={adapter(target)}")
    with ExitStack() as stack:
        started = []
        for name, words in (("base", writes), ("org/embedder", ("--runner", "pooling", "--convert", "embed"))):
            port = free_port()
            command: list[str | Path] = [program, "serve", target, "--host", "127.0.0.1", "--port", str(port)]
            command += ["--served-model-name", name, "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"]
            started.append(Process([*command, "--max-num-seqs", "4", *words], port, "Application startup complete"))
            stack.callback(started[-1].close)
        for process in started:
            process.wait_until_up()
        entries = {
            "llama": {
                "target": str(target),
                "engine": started[0].url,
                "format": "kimi_k25",
                "draft_tokens": 0,
                "adapters": ["sql", "gone"],
            },
            "embedder": {"engine": started[1].url, "passes": ["embeddings", "rerank"]},
        }
        file = target.parent / "models.yaml"
        file.write_text(json.dumps(entries))  # which is YAML too
        started.append(processes.dovetail("--models", file))
        stack.callback(started[-1].close)
        processes.until(lambda: ready(started[-1]), "models that are ready")
        yield started


def ready(gateway: Process) -> bool:
    try:
        statuses: dict[str, str] = httpx.get(f"{gateway.url}/ready").json()["models"]
    except httpx.HTTPError:
        return False
    assert "failed" not in statuses.values(), gateway.printed
    return set(statuses.values()) == {"ready"}


def post(server: Process, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=120)


def test_an_adapter_is_a_model(servers: list[Process]) -> None:
    engine, _, gateway = servers
    prompt = {"prompt": [9, 8, 7, 6, 5], "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    own = {name: post(engine, "/v1/completions", {"model": name, **prompt}).json() for name in ("base", "sql")}
    ours = {name: post(gateway, "/v1/completions", {"model": name, **prompt}).json() for name in ("llama", "sql")}
    texts = [answer["choices"][0]["text"] for answer in (*own.values(), *ours.values())]
    assert texts[:2] == texts[2:] and texts[0] != texts[1]
    listed = httpx.get(f"{gateway.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["llama", "sql", "gone", "embedder"]
    gone = post(gateway, "/v1/completions", {"model": "gone", **prompt})
    assert gone.status_code == 404 and "'gone'" in gone.text, "it is not loaded"


def test_embeddings_are_those_of_vllm(servers: list[Process]) -> None:
    _, engine, gateway = servers
    body = {"input": ["hello there", "and here"]}
    own = post(engine, "/v1/embeddings", {"model": "org/embedder", **body}).json()
    ours = post(gateway, "/v1/embeddings", {"model": "embedder", **body}).json()
    assert own["data"] == ours["data"] and len(ours["data"]) == 2 and ours["usage"] == own["usage"]
    refused = post(gateway, "/v1/embeddings", {"model": "embedder", "input": "a", "dimensions": -1})
    assert refused.status_code == 400 and refused.json()["error"]["message"]
    wrong = post(gateway, "/v1/embeddings", {"model": "llama", **body})
    assert wrong.status_code == 501 and "'llama' has no embeddings" in wrong.text
