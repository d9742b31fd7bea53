"""The Dockerfile and the bake file: their targets, their locks, and the commands that a build and a container run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dovetail
from dovetail.cli.main import main

FOLDER = Path(__file__).parents[2] / "deploy" / "image"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
BAKE = (FOLDER / "docker-bake.hcl").read_text()
DEMO = Path(dovetail.__file__).parent / "data" / "demo"
#: The context that the Dockerfile sees of a checkout.
CONTEXT = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()


def test_every_target_of_the_bake_file_is_a_stage() -> None:
    targets = set(re.findall(r'^  target   = "(.+)"$', BAKE, re.MULTILINE))
    assert targets == {"gateway", "engine", "vllm", "vllm-speculative"}
    assert targets <= set(re.findall(r"^FROM \S+ AS (.+)$", DOCKERFILE, re.MULTILINE))


def test_the_build_arguments_of_the_bake_file_are_declared() -> None:
    line = next(line for line in BAKE.splitlines() if line.startswith("  args       ="))
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)) | {"SOURCE_DATE_EPOCH"}  # one of BuildKit's own
    assert set(re.findall(r"(\w+) =", line)) - {"args"} <= declared


def test_the_gateways_lock_has_every_dependency() -> None:
    declared = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[\[<>=;]", each)[0] for each in declared}
    assert names <= set(re.findall(r"^([\w-]+)==", (FOLDER / "gateway.lock").read_text(), re.MULTILINE))


def test_the_locks_are_in_the_context() -> None:
    locks = set(re.findall(r"/source/deploy/image/(\S+\.lock)", DOCKERFILE))
    assert locks == {file.name for file in FOLDER.glob("*.lock")}
    assert "!deploy/image/*.lock" in CONTEXT
    for line in CONTEXT:
        assert not line.startswith("!") or [*FOLDER.parents[1].glob(line[1:])], line


def test_torch_is_the_version_of_the_extra() -> None:
    extra = next(line for line in (FOLDER.parents[1] / "pyproject.toml").read_text().splitlines() if "torch==" in line)
    assert re.findall(r"torch==[\d.]+", DOCKERFILE) == re.findall(r"torch==[\d.]+", extra)


def planned(target: Path, drafter: Path) -> int:
    """The exit code of the Dockerfile's check, for other folders than those of the image."""
    line = next(line for line in DOCKERFILE.splitlines() if line.startswith('RUN ["python3", "-m", "dovetail"'))
    words = json.loads(line.removeprefix("RUN "))[3:]
    paths = {"/models/target": str(target), "/models/drafter": str(drafter)}
    return main([paths.get(word, word) for word in words])


@pytest.fixture
def other_target(tmp_path: Path) -> Path:
    """A target of another width than the one that the demo's drafter reads."""
    config = json.loads((DEMO / "target" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 256}))
    return tmp_path


def test_a_build_checks_that_the_drafter_fits_the_config_of_the_target(
    tmp_path: Path, other_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_bytes((DEMO / "target" / "config.json").read_bytes())
    assert planned(tmp_path / "target", DEMO / "drafter") == 0
    assert "eagle3 drafts 3 a step" in capsys.readouterr().out
    assert planned(other_target, DEMO / "drafter") == 2
    assert re.search(r"192 wide .*, the target's hidden_size is 256", capsys.readouterr().err)
    assert planned(tmp_path / "target", tmp_path / "nothing") == 2


@pytest.mark.parametrize(
    ("version", "message"),
    [("0.33.0", ""), ("0.31.2", "this is vLLM 0.31.2"), (None, "No package metadata was found for vllm")],
)
def test_a_build_checks_the_vllm_of_its_base(version: str | None, message: str, tmp_path: Path) -> None:
    line = next(line for line in DOCKERFILE.splitlines() if "python3 -c" in line)
    _, _, code = shlex.split(line.strip().removeprefix("&& "))
    if version is not None:
        (tmp_path / "vllm-0.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        (tmp_path / "vllm-0.dist-info" / "METADATA").write_text(metadata)
    before = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not message) and message in done.stderr


def test_the_health_check_is_a_module_that_there_is() -> None:
    for line in re.findall(r"^HEALTHCHECK .* CMD (.+)$", DOCKERFILE, re.MULTILINE):
        words = json.loads(line)
        done = subprocess.run([sys.executable, *words[1:-1], "--help"], capture_output=True, text=True, check=True)
        assert words[-1] in done.stdout
