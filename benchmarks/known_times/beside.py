"""`dovetail bench` beside aiperf, guidellm and vLLM's client, one after the other on the server with known times."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine.cases import DEMO

TOKENS, AT_ONCE, REQUESTS, LIMIT_S = 121, 16, 48, 240
_TOKENIZER = str(DEMO / "target")

#: Medians in ms: time to the first token, per token, between deltas, of a request; None where a client has none.
Medians = tuple[float | None, ...]


def ours(url: str, folder: Path) -> Medians:
    matrix = ["--matrix", f"110 x {AT_ONCE}", "--kinds", "prose", "--tokens", str(TOKENS)]
    command = [sys.executable, "-m", "dovetail", "bench", url, *matrix, "--requests", str(REQUESTS), "--json"]
    (cell,) = json.loads(_run(command, folder))["cells"]
    return tuple(cell[name]["p50"] for name in ("ttft_ms", "tpot_ms", "gap_ms", "end_to_end_ms"))


def aiperf(url: str, folder: Path, program: Path) -> Medians:
    load = ["--concurrency", str(AT_ONCE), "--request-count", str(REQUESTS), "--warmup-request-count", str(AT_ONCE)]
    shape = ["--isl", "100", "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true", "--tokenizer", _TOKENIZER]
    how = ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--ui-type", "none"]
    _run(
        [program, "profile", "--model", "known-times", "--url", url, *load, *shape, *how, "--artifact-dir", "a"], folder
    )
    found = json.loads((folder / "a" / "profile_export_aiperf.json").read_text())
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    return tuple(found[name]["p50"] for name in names)


def guidellm(url: str, folder: Path, program: Path) -> Medians:
    words = [
        f"--backend=kind=openai_http,target={url},model=known-times,validate_backend=false",
        f"--profile=kind=concurrent,streams={AT_ONCE}",
        f"--constraint=kind=max_requests,count={REQUESTS}",
        f"--tokenizer=kind=huggingface_auto,model={_TOKENIZER}",
        f"--data=kind=synthetic_text,prompt_tokens=100,output_tokens={TOKENS}",
        "--output=kind=json,path=g.json",
        "--disable-console",
    ]
    # It starts ten processes, each of which imports torch.
    _run([program, "run", *words], folder, GUIDELLM__MAX_WORKER_PROCESSES="1")
    metrics = json.loads((folder / "g.json").read_text())["benchmarks"][0]["metrics"]
    names = ("time_to_first_token_ms", "inter_token_latency_ms", None, "request_latency")
    medians = [None if name is None else metrics[name]["successful"]["median"] for name in names]
    return (*medians[:3], 1000 * medians[3])


def vllm(url: str, folder: Path, program: Path) -> Medians:
    load = ["--num-prompts", str(REQUESTS), "--num-warmups", str(AT_ONCE), "--max-concurrency", str(AT_ONCE)]
    shape = ["--dataset-name", "random", "--random-input-len", "100", "--random-output-len", str(TOKENS)]
    to = ["--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", "known-times"]
    how = [
        "--ignore-eos",
        "--tokenizer",
        _TOKENIZER,
        "--trust-remote-code",
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
    ]
    out = ["--save-result", "--result-filename", "v.json", "--disable-tqdm"]
    _run([program, "-m", "vllm.entrypoints.cli.main", "bench", "serve", *to, *load, *shape, *how, *out], folder)
    found = json.loads((folder / "v.json").read_text())
    return tuple(found[f"median_{name}_ms"] for name in ("ttft", "tpot", "itl", "e2el"))


def _run(command: list[Any], folder: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout


def main() -> None:
    """Print a row for each client; one that is not installed or fails has its reason."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_times.beside", description=__doc__)
    for name, what in (("aiperf", "program"), ("guidellm", "program"), ("vllm", "Python")):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=f"its {what}; left out without one")
    options = parser.parse_args()
    clients: dict[str, Callable[[str, Path], Medians]] = {"dovetail bench": ours}
    for name, client in (("aiperf", aiperf), ("guidellm", guidellm), ("vllm", vllm)):
        if (program := getattr(options, name)) is not None:
            clients[name] = lambda url, folder, client=client, program=program: client(url, folder, program.absolute())
    command = [sys.executable, "-m", "benchmarks.known_times.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            print(f"{AT_ONCE} at once, medians in ms: first token, per token, between deltas, request", flush=True)
            for name, client in clients.items():
                print(f"{name:16}{_row(client, url)}", flush=True)
        finally:
            server.terminate()


def _row(client: Callable[[str, Path], Medians], url: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            medians = client(url, Path(folder))
        except (subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
            return f"not measured: {type(error).__name__}: {error}"[:300]
    return "".join(f"{'' if value is None else format(value, '.2f'):>10}" for value in medians)


if __name__ == "__main__":
    main()
