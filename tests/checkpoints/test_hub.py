"""Where a checkpoint's folder is: here, beside a drafter, in the hub's cache, or on a hub, which is one of our own."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from dovetail.checkpoints import hub
from dovetail.errors import CheckpointError, PlanError
from tests.checkpoints.configs import QWEN3_8B, write

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "owner" / "model", QWEN3_8B)
    assert hub.find(folder) == folder
    monkeypatch.chdir(tmp_path)
    assert hub.find("owner/model") == folder  # before the hub is asked
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.find("~/owner/model") == folder


def test_a_drafters_target_may_lie_beside_it(tmp_path: Path) -> None:
    target = write(tmp_path / "target", QWEN3_8B)
    (tmp_path / "drafter").mkdir()
    assert hub.find("../target", beside=str(tmp_path / "drafter")) == target


@pytest.mark.parametrize("name", ["/no/such/folder", "nowhere", "a/b/c", "./here", "-x/y", "", "a b/c"])
def test_what_is_no_folder_and_no_name_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"there is no folder .*: give a checkpoint's folder, or OWNER/NAME"):
        hub.find(name)


def test_without_the_package_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        PlanError, match=r"no folder Qwen/Qwen3-8B, .*pip install 'dovetail\[hub\]', or give a downloaded"
    ):
        hub.find("Qwen/Qwen3-8B")


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as is asked: one model with weights, a gated one, and one that breaks; no others."""

    asked: ClassVar[list[str]]
    FILES: ClassVar[dict[str, str]] = {
        "config.json": json.dumps(QWEN3_8B),
        "tokenizer.json": "{}",
        "model.safetensors": "x" * 9,
        "README.md": "#",
    }

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        name = path.removeprefix("/api/models/").removeprefix("/")
        if name.startswith("owner/open") and "revision/nonesuch" not in name:
            file = name.rpartition("/")[2]
            if "/tree/" in name:
                listed = [
                    {"type": "file", "path": each, "size": len(text), "oid": "0" * 40}
                    for each, text in self.FILES.items()
                ]
                return self._send(200, json.dumps(listed), body)
            if "/resolve/" in name:
                return self._send(200, self.FILES[file], body, {"ETag": f'"{file}"', "X-Repo-Commit": COMMIT})
            siblings = [{"rfilename": each} for each in self.FILES]
            return self._send(200, json.dumps({"id": "owner/open", "sha": COMMIT, "siblings": siblings}), body)
        if name.startswith("owner/open"):
            return self._send(404, "", body, {"X-Error-Code": "RevisionNotFound"})
        if name.startswith("owner/gated"):
            return self._send(403, "", body, {"X-Error-Code": "GatedRepo"})
        if name.startswith("owner/broken"):
            return self._send(500, "", body)
        return self._send(404, "", body, {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, text: str, body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(text))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """huggingface_hub, with a hub and a cache that are our own; the paths that it asks for."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra `hub` is not installed")
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    here = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", here)
    elsewhere = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here + elsewhere[elsewhere.index("/{") :])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield Hub.asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_small_files_of_a_model_are_fetched_and_no_weights(online: list[str]) -> None:
    folder = Path(hub.find("owner/open"))
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json"}
    assert json.loads((folder / "config.json").read_text()) == QWEN3_8B
    assert not any("model.safetensors" in path for path in online)


def test_a_fetched_model_is_found_off_line(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub.find("owner/open")
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    online.clear()
    assert hub.find("owner/open") == folder
    with pytest.raises(CheckpointError, match=r"no folder owner/other; the hub cannot be reached .*HF_HUB_OFFLINE"):
        hub.find("owner/other")
    assert not online


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        (
            "owner/gated",
            None,
            r"no access to owner/gated: it is gated; accept its terms .*`hf auth login`, or HF_TOKEN",
        ),
        ("owner/absent", None, r"no folder owner/absent, and no model of that name on the hub that may be read"),
        ("owner/open", "nonesuch", r"owner/open is on the hub, but has no revision nonesuch: leave --revision out"),
        ("owner/broken", None, r"owner/broken could not be fetched, the hub answered: .*500"),
        ("owner/a--b", None, r"owner/a--b is no name that the hub has"),
    ],
)
def test_what_a_hub_refuses_is_one_line(online: list[str], name: str, revision: str | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        hub.find(name, revision=revision)
    assert "\n" not in refusal.value.message


def test_without_a_network_the_way_out_is_named(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")  # nobody answers there
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached .*give a downloaded folder"):
        hub.find("owner/open")
