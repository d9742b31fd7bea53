"""What of a plan vLLM's command line has: the gateway in front of it follows the rest."""

from __future__ import annotations

from pathlib import Path

from dovetail.backends.vllm.launching import launch
from dovetail.plan import resolve
from tests.checkpoints.configs import QWEN3_8B, write


def test_settings_of_the_gateway_are_neither_passed_nor_missed(tmp_path: Path) -> None:
    target = str(write(tmp_path / "qwen", QWEN3_8B))
    fields = {"max_waiting": 5, "response_store_age": 1.5, "host": "0.0.0.0", "context": 512}
    started = launch(resolve(target, {"engine": "vllm", **fields}), "vllm", "0.33.0", "/tmp/socket")
    assert started.notes == ()
    assert "--host" not in started.arguments
    assert started.arguments[started.arguments.index("--max-model-len") + 1] == "512"
