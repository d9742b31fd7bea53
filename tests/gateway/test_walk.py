"""How many files one request enters, as `serve` has it: a reader who follows it has to open them all."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

import dovetail
from tests.demo_server import demo_server

ROOT = Path(dovetail.__file__).parent
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
REQUEST = {
    "model": "demo",
    "stream": True,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
}


@pytest.fixture(scope="module", params=["with memory", "without memory"])
def calls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Counter[str]]]:
    """The calls into each file of the package, while a warm server streams the answer to a request with one tool."""
    memory = tmp_path_factory.mktemp("memory") / "memory.db" if request.param == "with memory" else None
    counted: Counter[str] = Counter()
    counting = threading.Event()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and counting.is_set():
            counted[frame.f_code.co_filename] += 1

    threading.setprofile(count)  # for the threads that the server begins
    try:
        with demo_server(memory=memory) as url:
            ask(url)
            counting.set()
            assert b"get_weather" in ask(url)
            counting.clear()
    finally:
        threading.setprofile(None)
    entered = {Path(path): number for path, number in counted.items() if path.startswith(str(ROOT))}
    yield request.param, Counter({str(path.relative_to(ROOT)): number for path, number in entered.items()})


def ask(url: str) -> bytes:
    return httpx.post(f"{url}/v1/chat/completions", json=REQUEST, timeout=60).raise_for_status().content


def by_folder(calls: Counter[str]) -> str:
    folders: dict[str, list[str]] = defaultdict(list)
    for path, number in sorted(calls.items()):
        folder, _, name = path.rpartition("/")
        folders[folder].append(f"{name} {number}")
    return "\n".join(f"{folder or '.'} ({len(files)}): {', '.join(files)}" for folder, files in folders.items())


#: The most files, and the most in the gateway.
MOST = {"with memory": (87, 25), "without memory": (80, 22)}


def test_a_request_enters_few_files(calls: tuple[str, Counter[str]]) -> None:
    how, all_files = calls
    for folder, most in zip(("", "gateway/"), MOST[how], strict=True):
        entered = Counter({path: number for path, number in all_files.items() if path.startswith(folder)})
        assert len(entered) <= most, f"{len(entered)} files {how}\n{by_folder(entered)}"
