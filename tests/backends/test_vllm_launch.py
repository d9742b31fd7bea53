"""What of a plan vLLM's command line has: the gateway in front of it follows the rest."""

from __future__ import annotations

from itertools import pairwise
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


def test_its_endpoint_for_pictures_is_on_its_socket_alone(tmp_path: Path) -> None:
    target = str(write(tmp_path / "qwen", QWEN3_8B))
    started = launch(resolve(target, {"engine": "vllm"}), "vllm", "0.33.0", "/tmp/socket")
    assert "--enable-scale-out" in started.arguments and started.arguments[-2:] == ("--uds", "/tmp/socket")


def test_reasoning_has_the_markers_of_the_format_and_an_operator_may_have_others(tmp_path: Path) -> None:
    target = str(write(tmp_path / "qwen", QWEN3_8B))
    own = """--reasoning-config '{"reasoning_end_str": "Enough.</think>"}'"""
    started = launch(
        resolve(target, {"engine": "vllm", "engine_args": own}), "vllm", "0.32.0", "/tmp/socket", ("<a>", "</a>")
    )
    configs = [value for flag, value in pairwise(started.arguments) if flag == "--reasoning-config"]
    # vLLM takes the last of two equal options.
    assert configs == [
        '{"reasoning_start_str": "<a>", "reasoning_end_str": "</a>"}',
        '{"reasoning_end_str": "Enough.</think>"}',
    ]
