"""The images, built and run, on the base that `make image-test` names in DOVETAIL_IMAGE_BASE. Needs root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.image.check import Report, Trial, check
from dovetail.image.layout import read_layout

ROOT = Path(__file__).parents[2]
BASE = os.environ.get("DOVETAIL_IMAGE_BASE", "")
pytestmark = pytest.mark.skipif(not BASE, reason="make image-test names a base in DOVETAIL_IMAGE_BASE")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A storage of its own for buildah, which runs without namespaces; removed afterwards."""
    folder = tmp_path_factory.mktemp("storage")
    lines = ["[storage]", 'driver = "overlay"', f'runroot = "{folder}/run"', f'graphroot = "{folder}/graph"', ""]
    (folder / "storage.conf").write_text("\n".join(lines))
    yield os.environ | {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
    shutil.rmtree(folder)


def built(target: str, output: Path, storage: dict[str, str], *words: str) -> str:
    """The digest of the image that `dovetail image build` writes to `output`."""
    command = ["image", "build", "--target", target, "--base", f"oci:{BASE}", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", *command, "--source", str(ROOT), *words],
        env=storage,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return read_layout(output).digest


@pytest.fixture(scope="module")
def twice(storage: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a target twice, once for all tests: the folder of the layout."""
    folder = tmp_path_factory.mktemp("images")
    done: dict[str, Path] = {}

    def build(target: str) -> Path:
        if target not in done:
            first = built(target, folder / target, storage)
            second = built(target, folder / f"{target}-again", storage)
            assert first == second, f"two builds of {target} differ"
            shutil.rmtree(folder / f"{target}-again")
            done[target] = folder / target
        return done[target]

    yield build
    shutil.rmtree(folder)


def called(layout: Path) -> dict[str, Any]:
    """What OpenAI's client was answered, in a namespace without any network but loopback."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.image.sandboxed_call", str(layout)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_engine_answers_a_call_with_accepted_drafts(twice: Any) -> None:
    engine = twice("engine")
    report: Report = check(str(engine), None, Trial())
    assert report.trial is not None and report.trial["accepted"]
    print(report)
    answer = called(engine)
    assert (answer["name"], answer["arguments"]) == ("get_weather", {"city": "Paris"})
    assert answer["speculation"]["accepted"] > 0


def test_the_gateway_is_small_and_holds_no_torch_and_no_weights(twice: Any, tmp_path: Path) -> None:
    gateway = twice("gateway")
    layout = read_layout(gateway)
    layout.unpack(tmp_path / "root")
    files = [file for file in (tmp_path / "root").rglob("*") if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files)
    print(f"gateway: {size / 1e6:.0f} MB, {layout.size / 1e6:.0f} MB compressed")
    assert size < 200e6
    assert not [file for file in files if file.parent.name == "torch"]
    assert not [file for file in files if file.suffix == ".safetensors"]
    check(str(gateway), None, None)  # a trial needs a vLLM behind it


@pytest.mark.parametrize("target", ["vllm", "vllm-speculative"])
def test_a_base_without_vllm_is_refused_and_nothing_is_left(
    target: str, storage: dict[str, str], tmp_path: Path
) -> None:
    demo = ROOT / "src" / "dovetail" / "data" / "demo"
    words = [str(demo / "target"), "--drafter", str(demo / "drafter")] if target == "vllm-speculative" else []
    with pytest.raises(AssertionError, match="dovetail: the build failed: the base holds no vLLM"):
        built(target, tmp_path / "image", storage, *words)
    assert not (tmp_path / "image").exists()
    listed = subprocess.run(["buildah", "images", "--quiet"], env=storage, capture_output=True, text=True, check=True)
    named = subprocess.run(["buildah", "images", "--format", "{{.Name}}"], env=storage, capture_output=True, text=True)
    assert f"localhost/dovetail-{target}" not in named.stdout, listed.stdout
