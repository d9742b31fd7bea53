"""The folder of a checkpoint: local, beside a drafter, in the hub's cache, or fetched from a hub (a fake one here)."""

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


def test_a_local_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "owner" / "model", QWEN3_8B)
    assert hub.find(folder) == folder
    monkeypatch.chdir(tmp_path)
    assert hub.find("owner/model") == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.find("~/owner/model") == folder


def test_a_folder_relative_to_another(tmp_path: Path) -> None:
    target = write(tmp_path / "target", QWEN3_8B)
    (tmp_path / "drafter").mkdir()
    assert hub.local_folder("../target", beside=str(tmp_path / "drafter")) == target


@pytest.mark.parametrize("name", ["/no/such/folder", "nowhere", "a/b/c", "./here", "-x/y", "", "a b/c"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no folder .*: give a checkpoint's folder, a GGUF file, or OWNER/NAME"):
        hub.find(name)


def test_hub_ids_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        PlanError, match=r"no folder Qwen/Qwen3-8B, .*pip install 'dovetail\[hub\]', or give a downloaded"
    ):
        hub.find("Qwen/Qwen3-8B")


class Hub(BaseHTTPRequestHandler):
    """A hub with one open model, a gated one, and one that answers with an error."""

    requests: ClassVar[list[str]]
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
        self.requests.append(path)
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
    """Lets huggingface_hub use a hub and a cache of the test; returns the list of requested paths."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra `hub` is not installed")
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template[template.index("/{") :])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield Hub.requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_small_files_are_fetched_and_weights_are_not(online: list[str]) -> None:
    folder = Path(hub.find("owner/open"))
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json"}
    assert json.loads((folder / "config.json").read_text()) == QWEN3_8B
    assert not any("model.safetensors" in path for path in online)


def test_a_fetched_model_is_found_offline(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("owner/absent", None, r"no folder owner/absent, and no readable model of that name on the hub"),
        ("owner/open", "nonesuch", r"owner/open is on the hub, but has no revision nonesuch: leave --revision out"),
        ("owner/broken", None, r"owner/broken could not be fetched, the hub answered: .*500"),
        ("owner/a--b", None, r"owner/a--b is not a valid name on the hub"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(online: list[str], name: str, revision: str | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        hub.find(name, revision=revision)
    assert "\n" not in refusal.value.message


def test_without_a_network_the_error_says_what_to_do(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached .*give a downloaded folder"):
        hub.find("owner/open")
