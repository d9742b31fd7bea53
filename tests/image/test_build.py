"""`dovetail image build`: what it runs, and every input that it refuses with one line and without a trace."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.errors import PlanError
from dovetail.image import base, build, builder, context, vllm_base
from dovetail.image.builder import Builder, find_builder
from dovetail.image.targets import BY_NAME, TARGETS
from tests.image.conftest import DEMO

PINNED = "registry.example/vllm@sha256:" + "0" * 64
SOURCE = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only program is a buildah that notes its arguments; a folder for what it leaves."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(context, "run_pip", _pip)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path


def _pip(words: Any) -> None:
    """Leaves one file where pip leaves a wheel."""
    folder = Path(words[words.index("--dest") + 1] if "--dest" in words else words[words.index("--wheel-dir") + 1])
    (folder / "pip-1.whl").touch()


def program(machine: Path, name: str, lines: str) -> None:
    file = machine / "bin" / name
    file.write_text(f'#!/bin/sh\necho "$@" >>{machine}/ran\n{lines}\n')
    file.chmod(0o755)


def built(*words: str) -> int:
    return main(["image", "build", "--source", str(SOURCE), *words])


def ran(machine: Path) -> str:
    return (machine / "ran").read_text() if (machine / "ran").exists() else ""


def test_a_build_has_no_network_and_one_time(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(machine, "buildah", "for last; do :; done; /bin/ls $last $last/models >>" + str(machine / "context"))
    words = ("--target", "vllm-speculative", "--base", PINNED, str(DEMO / "target"), "--drafter", str(DEMO / "drafter"))
    assert built(*words) == 0
    command = ran(machine)
    assert command.startswith("build --format docker --timestamp ")
    assert "--network none --target vllm-speculative --tag localhost/dovetail-vllm-speculative:latest" in command
    assert f"--build-arg BASE={PINNED}" in command
    listed = (machine / "context").read_text().split()
    assert {"Dockerfile", "pip.whl", "wheels", "manifest.json", "drafter", "target", "serve.yaml"} <= set(listed)
    assert capsys.readouterr().out.startswith("built localhost/dovetail-vllm-speculative:latest in ")
    assert not list((machine / "scratch").iterdir())


def test_the_layout_appears_whole(machine: Path) -> None:
    program(machine, "buildah", "[ $1 = build ] || { d=${4#oci:}; /bin/mkdir ${d%:latest}; }")
    assert built("--target", "gateway", "--base", PINNED, "--output", str(machine / "out" / "layout")) == 0
    assert [each.name for each in (machine / "out").iterdir()] == ["layout"]
    assert ran(machine).startswith("build --format oci --timestamp ")


def test_a_push_that_fails_leaves_nothing(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(machine, "buildah", "[ $1 = build ] || { echo disk full; exit 1; }")
    assert built("--target", "gateway", "--base", PINNED, "--output", str(machine / "out" / "layout")) == 2
    assert capsys.readouterr().err == "dovetail: the build failed: disk full\n"
    assert list((machine / "out").iterdir()) == []


def test_a_build_that_fails_says_why_and_leaves_nothing(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(machine, "buildah", "echo STEP 1; echo 'dovetail: the base holds no vLLM' >&2; echo exit status 2; exit 1")
    assert built("--target", "vllm", "--base", PINNED, "--output", str(machine / "layout")) == 2
    assert capsys.readouterr().err == "dovetail: the build failed: the base holds no vLLM\n"
    assert not (machine / "layout").exists()
    assert not list((machine / "scratch").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "gateway"], "--base is missing: gateway needs Python 3.11 or later"),
        (["--target", "vllm", "--base", "vllm/vllm-openai:v0.33.0"], "is a tag, which may name other files tomorrow"),
        (["--target", "vllm", "--base", "vllm/vllm-openai"], "give vllm/vllm-openai@sha256:…"),
        (["--target", "vllm", "--base", "a@sha256:00"], "a digest is sha256: and 64 hexadecimal digits"),
        (["--target", "vllm", "--base", "oci:/nowhere"], "/nowhere is no OCI layout, it has no index.json"),
        (["--target", "vllm", "--base", PINNED, "model"], "--target vllm takes no model"),
        (["--target", "vllm-speculative", "--base", PINNED], "needs MODEL, the target, and --drafter FOLDER"),
        (
            ["--target", "gateway", "--base", PINNED, "--builder", "docker"],
            "--builder docker: it is not on this machine",
        ),
        (["--target", "gateway", "--base", PINNED, "--output", "/"], "--output / exists already"),
        (["--target", "gateway", "--context", "/"], "--context / exists already"),
        (["--target", "gateway", "--base", PINNED, "--source", "/"], "/ is no checkout of Dovetail"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    machine: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    program(machine, "buildah", "")
    assert built(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert ran(machine) == "" and not list((machine / "scratch").iterdir())


def test_a_drafter_for_another_target_is_refused_before_the_build(
    machine: Path, other_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine, "buildah", "")
    words = ("--target", "vllm-speculative", "--base", PINNED, str(other_target), "--drafter", str(DEMO / "drafter"))
    assert built(*words) == 2
    error = capsys.readouterr().err
    assert "192 wide" in error and "the target's hidden_size is 256" in error
    assert ran(machine) == ""


def test_without_a_builder_the_message_says_what_to_install(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert built("--target", "gateway", "--base", PINNED) == 2
    error = capsys.readouterr().err
    assert "no builder of images on this machine" in error and "apt-get install buildah" in error


def test_a_docker_without_its_daemon_is_no_builder(machine: Path) -> None:
    program(machine, "docker", "exit 1")
    with pytest.raises(PlanError, match="no builder"):
        find_builder()
    program(machine, "docker", "")
    assert find_builder().name == "docker"
    program(machine, "podman", "")
    assert find_builder().name == "podman"


def test_docker_builds_with_buildx_and_writes_no_layout() -> None:
    docker = Builder("docker", "/usr/bin/docker")
    command = docker.build(Path("/c"), "gateway", "t", {"BASE": PINNED}, 5, layout=False)
    assert command[:4] == ["/usr/bin/docker", "buildx", "build", "--load"]
    assert "SOURCE_DATE_EPOCH=5" in command and command[-1] == "/c"
    with pytest.raises(PlanError, match="docker writes no OCI layout"):
        docker.push("t", Path("/l"))


def test_a_layout_is_a_base(tmp_path: Path) -> None:
    (tmp_path / "index.json").touch()
    assert base.checked_base(f"oci:{tmp_path}") == f"oci:{tmp_path}"
    assert base.checked_base(PINNED) == PINNED


def test_only_a_context_needs_no_base_and_no_builder(machine: Path) -> None:
    assert built("--target", "gateway", "--context", str(machine / "context")) == 0
    assert sorted(os.listdir(machine / "context")) == ["Dockerfile", "pip.whl", "wheels"]


def test_torch_comes_from_its_own_index_where_pip_has_no_build_for_cpu(tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def pip(words: Any) -> None:
        commands.append(list(words))
        if "torch==2.13.0+cpu" in words:
            raise PlanError("no such version")
        _pip(words)

    context.write_context(BY_NAME["engine"], SOURCE, tmp_path, None, pip)
    assert "--index-url" in next(words for words in commands if "torch==2.13.0" in words)
    locked = [words for words in commands if "--require-hashes" in words]
    assert [Path(words[words.index("--requirement") + 1]).name for words in locked] == [
        "pip.lock",
        "gateway.lock",
        "engine.lock",
    ]


def test_a_package_that_cannot_be_had_is_one_line() -> None:
    with pytest.raises(PlanError, match=r"pip download failed: .*no-such-file") as refused:
        context.run_pip(["download", "--requirement", "/no-such-file"])
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(("version", "message"), [(None, "holds no vLLM"), ("0.31.2", "this is vLLM 0.31.2")])
def test_a_base_without_a_tested_vllm_ends_the_build(
    version: str | None, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise vllm_base.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(vllm_base.metadata, "version", installed)
    assert vllm_base.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("dovetail: ") and message in error and error.count("\n") == 1


def test_a_base_with_a_tested_vllm_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(vllm_base.metadata, "version", lambda name: "0.33.0")
    assert vllm_base.main() == 0
    assert capsys.readouterr().out == "vLLM 0.33.0\n"


def test_the_plan_of_images_is_a_page_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [str(DEMO / "target"), "--drafter", str(DEMO / "drafter")]
    assert main(["image", "plan", *pair]) == 0
    page = capsys.readouterr().out
    assert all(target.name in page for target in TARGETS) and "eagle3" in page
    assert main(["image", "plan", "--target", "gateway", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [target["name"] for target in data["targets"]] == ["gateway"] and data["drafter"] is None


def test_every_target_is_in_the_dockerfile() -> None:
    lines = (SOURCE / "deploy" / "image" / "Dockerfile").read_text().splitlines()
    stages = [line.split()[-1] for line in lines if line.startswith("FROM ")]
    assert {target.name for target in TARGETS} <= set(stages)
    for target in TARGETS:
        assert all((SOURCE / "deploy" / "image" / lock).is_file() for lock in target.locks)


def test_the_end_of_a_builder_s_output_is_its_reason() -> None:
    with pytest.raises(PlanError, match="the build failed: one two"):
        builder.run_builder(["/bin/sh", "-c", "echo one; echo two >&2; exit 3"])


def test_an_image_names_the_commit_or_says_that_files_were_modified(tmp_path: Path) -> None:
    assert build._commit(tmp_path) == ("unknown", 0)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").touch()
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--no-verify", "-m", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    revision, time = build._commit(tmp_path)
    assert len(revision) == 40 and time > 0
    (tmp_path / "src" / "a.py").write_text("1")
    assert build._commit(tmp_path) == (f"{revision}-modified", time)
