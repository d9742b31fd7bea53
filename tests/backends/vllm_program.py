"""A program that behaves like `vllm` from outside: its arguments, its log, its HTTP, and its ways to end.

`write` makes one; what each of its runs does is a `Run`.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Written by vLLM 0.32 as it loaded the demo pair.
LOADING = (
    "(APIServer pid=1) INFO 11-22 07:55:18 [model.py:733] Resolved architecture: DeepseekV3ForCausalLM",
    "(Worker pid=3) INFO 11-22 07:55:41 [cpu_model_runner.py:68] Starting to load model /models/target...",
    "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<00:00, 11.04it/s]",
    "(Worker pid=3) INFO 11-22 07:55:42 [cpu_model_runner.py:75] Loading drafter model...",
    "(EngineCore pid=2) INFO 11-22 07:55:43 [kv_cache_utils.py:2327] CPU KV cache size: 85,584 tokens, Maximum …",
)
READY = "INFO:     Application startup complete."
#: The prompt with which vLLM is asked what it makes of a grammar.
NO_PROMPT = [2**31 - 1]
HELP = "options:\n  --enforce-eager, --no-enforce-eager\n  --block-size BLOCK_SIZE\n  --max-model-len LEN\n"


@dataclass(frozen=True)
class Run:
    """What one run does: writes `log`, then ends with the code `dies`, or serves.

    `dies_after`: killed by itself once it has sent so many tokens. `stubborn`: does not listen to SIGTERM. `silent`:
    neither serves nor ends. `drafts`: draft tokens counted for each token, None for no such counters; none are where a
    request has `below` tokens or more. `tokens`: the ids of whatever it is to tokenize (None: it does not say).
    `constrained`: whether grammars are applied.
    """

    log: tuple[str, ...] = LOADING
    dies: int | None = None
    dies_after: int | None = None
    stubborn: bool = False
    silent: bool = False
    drafts: int | None = 3
    below: int = 1 << 30
    model: str | None = None
    context: int = 256
    tokens: tuple[int, ...] | None = None
    constrained: bool = True
    #: As in `vllm_refusal`.
    backend: str = "xgrammar"


def write(folder: Path, *runs: Run, version: str = "0.33.0") -> Path:
    """An executable `vllm` in `folder`, whose last run is repeated for ever. Each run leaves `run-N.json` there."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vllm"
    root = Path(__file__).parents[2]
    script = json.dumps({"folder": str(folder), "version": version, "runs": [asdict(run) for run in runs or (Run(),)]})
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        f"from tests.backends.vllm_program import main\nmain({script!r})\n"
    )
    program.chmod(0o755)
    return program


def runs(folder: Path) -> list[dict[str, Any]]:
    """What its runs left, in order: their words, their `VLLM_API_KEY`, their `pids` (a descendant's among them)."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("run-*.json"))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(script: str) -> None:
    behaviour, words = json.loads(script), sys.argv[1:]
    if "--version" in words:
        print(behaviour["version"])
        return
    if "--help=all" in words:
        print(HELP)
        return
    unknown = [word for word in words if word.startswith("--no-such") or word == "--enforce-eagr"]
    if unknown:
        print(f"usage: vllm [-h] [-v]\nvllm: error: unrecognized arguments: {' '.join(unknown)}", file=sys.stderr)
        sys.exit(2)
    folder = Path(behaviour["folder"])
    number = len(list(folder.glob("run-*.json")))
    run = behaviour["runs"][min(number, len(behaviour["runs"]) - 1)]
    # As the processes of an engine: some have sessions of their own.
    descendant = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    record = {"words": words, "key": os.environ.get("VLLM_API_KEY"), "pids": [os.getpid(), descendant.pid]}
    (folder / f"run-{number:03}.json.new").write_text(json.dumps(record))
    os.replace(folder / f"run-{number:03}.json.new", folder / f"run-{number:03}.json")
    if run["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in run["log"]:
        print(line, flush=True)
        time.sleep(0.01)
    if run["dies"] is not None:
        os._exit(run["dies"])
    if run["silent"]:
        time.sleep(600)
    _Handler.run, _Handler.target = run, words[1]
    server: socketserver.BaseServer
    if "--uds" in words:
        server = _Listener(words[words.index("--uds") + 1], _Handler)
    else:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), _Handler)
    print(READY, flush=True)
    server.serve_forever()


def vllm_refusal(body: dict[str, Any], backend: str, budgets: str = "off") -> tuple[int, bytes]:
    """What vLLM 0.32 says to a prompt of no token: its words for the first thing that is wrong.

    `backend` is xgrammar, guidance, or guidance with a tokenizer that is `slow` to it. `budgets` of reasoning are "on",
    "off", or "unknown" to an older vLLM.
    """
    outputs = body.get("structured_outputs", {})
    script = "Token id 2147483647 is out of vocabulary"
    budget = body.get("thinking_token_budget")
    if budget is not None and budget < -1 and budgets != "unknown":
        script = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
    elif budget is not None and budgets == "off":
        script = "thinking_token_budget is set but reasoning_config is not configured."
    elif outputs and backend == "slow":
        script = "The 'guidance' structured output backend only supports fast Hugging Face tokenizers"
    elif "structural_tag" in outputs and backend == "guidance":
        script = "Invalid grammar specification: 'triggers'"
    error = {"message": script, "type": "BadRequestError", "param": None, "code": 400}
    return 400, json.dumps({"error": error}).encode()


class _Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints nothing about a disconnected client, because a test reads the last lines as vLLM's error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    run: dict[str, Any]
    target: str
    drafted = 0

    def log_message(self, *_: object) -> None: ...

    def _allowed(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}":
            return True
        self._answer(401, b'{"error": "Unauthorized"}')
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b"")
        elif self.path == "/metrics":
            lines = ["vllm:num_requests_running 0.0"]
            if self.run["drafts"] is not None:
                lines += [
                    f"vllm:spec_decode_num_draft_tokens_total {_Handler.drafted}.0",
                    f"vllm:spec_decode_num_accepted_tokens_total {_Handler.drafted // 2}.0",
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {_Handler.drafted // 2}.0',
                ]
            self._answer(200, ("\n".join(lines) + "\n").encode())
        elif self.path == "/v1/models" and self._allowed():
            entry = {"id": self.run["model"] or self.target, "object": "model", "owned_by": "vllm"}
            entry |= {"root": self.target, "parent": None, "max_model_len": self.run["context"]}
            self._answer(200, json.dumps({"object": "list", "data": [entry]}).encode())

    def do_POST(self) -> None:
        if not self._allowed():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer(200, json.dumps({"tokens": self.run["tokens"]}).encode())
            return
        if self.path != "/v1/completions":  # it has no endpoint that takes pictures
            self._answer(404, b"{}")
            return
        if body["prompt"] == NO_PROMPT:
            budgets = "on" if "--reasoning-config" in sys.argv else "off"
            self._answer(*vllm_refusal(body, self.run["backend"], budgets))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        constrained = self._constrained(body)
        for i in range(body["max_tokens"]):
            if self.run["dies_after"] == i:
                os.kill(os.getpid(), signal.SIGKILL)
            last = i + 1 == body["max_tokens"]
            if len(body["prompt"]) + i < self.run["below"]:
                _Handler.drafted += self.run["drafts"] or 0
            choice = {
                "index": 0,
                "text": "",
                "token_ids": [constrained or 10 + i % 50],
                "finish_reason": "length" if last else None,
            }
            self._event({"id": "cmpl-1", "choices": [choice]})
            time.sleep(0.005)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self._event({"id": "cmpl-1", "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _constrained(self, body: dict[str, Any]) -> int | None:
        """The token that its grammar ends in, if grammars are heeded."""
        outputs = body.get("structured_outputs", {})
        if not outputs or not self.run["constrained"]:
            return None
        if self.run["backend"] == "guidance":
            # The end of the turn is behind it.
            return int(re.findall(r"<\[(\d+)\]>", outputs["grammar"])[0])
        token: int = json.loads(outputs["structural_tag"])["format"]["elements"][-1].get("token")
        return token

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()
