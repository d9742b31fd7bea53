"""The images, built and run, on the bases that `make image-test` names. Needs root.

DOVETAIL_IMAGE_BASE: a Debian with Python; DOVETAIL_IMAGE_VLLM_BASE: that and vLLM for CPU. Both are OCI layouts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.errors import PlanError
from dovetail.image.check import Report, Trial, check
from dovetail.image.layout import read_layout
from tests.image.sandboxed_call import Server

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src" / "dovetail" / "data" / "demo"
BASE = os.environ.get("DOVETAIL_IMAGE_BASE", "")
VLLM_BASE = os.environ.get("DOVETAIL_IMAGE_VLLM_BASE", "")
#: What vLLM needs on a CPU that the demo pair's answers are known of.
ON_CPU = ("--dtype", "float32")
needs_vllm = pytest.mark.skipif(not VLLM_BASE, reason="make image-test has no vLLM for CPU to make a base of")
pytestmark = pytest.mark.skipif(not BASE, reason="make image-test names a base in DOVETAIL_IMAGE_BASE")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A storage of its own for buildah, which runs without namespaces; removed afterwards."""
    folder = tmp_path_factory.mktemp("storage")
    lines = ["[storage]", 'driver = "overlay"', f'runroot = "{folder}/run"', f'graphroot = "{folder}/graph"', ""]
    (folder / "storage.conf").write_text("\n".join(lines))
    yield os.environ | {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
    shutil.rmtree(folder)


def built(target: str, output: Path, storage: dict[str, str], *words: str, base: str = BASE) -> str:
    """The digest of the image that `dovetail image build` writes to `output`."""
    command = ["image", "build", "--target", target, "--base", f"oci:{base}", "--output", str(output)]
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


def called(*servers: Server) -> dict[str, Any]:
    """What OpenAI's client was answered by the last, in a namespace without any network but loopback."""
    wish = msgspec.json.encode(servers).decode()
    command = ["unshare", "--net", sys.executable, "-m", "tests.image.sandboxed_call", wish]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (answer["name"], answer["arguments"]) == ("get_weather", {"city": "Paris"})
    assert answer["speculation"]["accepted"] > 0
    return answer


def test_the_engine_answers_a_call_with_accepted_drafts(twice: Any) -> None:
    engine = twice("engine")
    report: Report = check(str(engine), None, Trial())
    assert report.trial is not None and report.trial["accepted"]
    print(report)
    called(Server(layout=str(engine), port=8000, words=["--port", "8000"]))


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
    check(str(gateway), None, None)  # a trial needs a vLLM behind it: below


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For the images with vLLM, which are large: removed afterwards."""
    made = tmp_path_factory.mktemp("vllm")
    yield made
    shutil.rmtree(made)


@needs_vllm
def test_the_gateway_answers_for_the_vllm_behind_it(twice: Any, storage: dict[str, str], folder: Path) -> None:
    built("vllm", folder / "vllm", storage, base=VLLM_BASE)
    drafting = {"method": "eagle3", "model": "/models/drafter", "num_speculative_tokens": 3}
    program = ["vllm", "serve", "/models/target", "--host", "127.0.0.1", "--port", "8001"]
    program += ["--served-model-name", "demo", *ON_CPU, "--max-model-len", "1024", "--enforce-eager"]
    program += ["--speculative-config", json.dumps(drafting), "--per-request-spec-decode-metrics=summary"]
    mounts = {str(DEMO / part): f"/models/{part}" for part in ("target", "drafter")}
    engine = Server(layout=str(folder / "vllm"), port=8001, program=program, mounts=mounts)
    words = ["--engine", "http://127.0.0.1:8001", "--served-model-name", "demo", "--context", "1024", "--port", "8000"]
    called(engine, Server(layout=str(twice("gateway")), port=8000, words=words))
    shutil.rmtree(folder / "vllm")


@needs_vllm
def test_vllm_with_a_drafter_inside_serves_the_target_that_it_fits(
    storage: dict[str, str], folder: Path, other_target: Path
) -> None:
    image = folder / "speculative"
    built("vllm-speculative", image, storage, str(DEMO / "target"), "--drafter", str(DEMO / "drafter"), base=VLLM_BASE)
    with pytest.raises(PlanError, match=r"192 wide.*hidden_size is 256"):
        check(str(image), other_target, None)
    report = check(str(image), DEMO / "target", Trial(("--engine-args=--enforce-eager", "--context", "1024", *ON_CPU)))
    print(report)
    assert report.manifest is not None and report.manifest.method == "eagle3"
    assert report.trial is not None and report.trial["accepted"]


@pytest.mark.parametrize("target", ["vllm", "vllm-speculative"])
def test_a_base_without_vllm_is_refused_and_nothing_is_left(
    target: str, storage: dict[str, str], tmp_path: Path
) -> None:
    words = [str(DEMO / "target"), "--drafter", str(DEMO / "drafter")] if target == "vllm-speculative" else []
    with pytest.raises(AssertionError, match="dovetail: the build failed: the base holds no vLLM"):
        built(target, tmp_path / "image", storage, *words)
    assert_nothing_is_left(target, tmp_path / "image", storage)


def test_a_base_with_an_untested_vllm_is_refused_and_nothing_is_left(storage: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.2\n")
    base = tmp_path / "base"

    def buildah(*words: str) -> str:
        done = subprocess.run(["buildah", *words], env=storage, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    working = buildah("from", f"oci:{BASE}")
    buildah("copy", working, str(tmp_path / "METADATA"), "/usr/lib/python3/dist-packages/vllm-0.31.2.dist-info/")
    buildah("commit", "--quiet", "--rm", working, f"oci:{base}:latest")
    with pytest.raises(AssertionError, match=r"dovetail: the build failed: .*this is vLLM 0\.31\.2"):
        built("vllm", tmp_path / "image", storage, base=str(base))
    assert_nothing_is_left("vllm", tmp_path / "image", storage)


def assert_nothing_is_left(target: str, output: Path, storage: dict[str, str]) -> None:
    assert not output.exists() and not list(output.parent.glob(".dovetail-*"))
    for words in (["images", "--format", "{{.Name}}"], ["containers", "--format", "{{.ContainerName}}"]):
        listed = subprocess.run(["buildah", *words], env=storage, capture_output=True, text=True, check=True).stdout
        assert f"localhost/dovetail-{target}" not in listed and (words[0] == "images" or not listed.strip())
