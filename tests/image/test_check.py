"""`dovetail image check`: an image is refused for the first thing that is not as its labels and its manifest say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from tests.image.conftest import DEMO
from tests.image.layouts import CONFIG, below, layer, write_layout


@pytest.fixture
def image(tmp_path: Path, models: Path) -> Path:
    return write_layout(tmp_path / "image", [layer({"etc/os-release": b""}), layer(below(models, "models"))])


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Any:
    def checked(*words: object) -> str:
        assert main(["image", "check", *map(str, words)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return checked


def bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Path:
    """The only program on PATH: notes its arguments."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "bwrap"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/ran\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "ran"


def test_what_is_right_is_reported(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "check", str(image), "--no-start", "--model", str(DEMO / "target")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vllm-speculative sha256:")
    assert lines[1].startswith("user 10001:10001, port 8000, ")
    assert lines[2:] == [
        "drafter fits target: eagle3, 3 draft tokens a step",
        "4 files of the drafter as its manifest has them",
    ]
    assert main(["image", "check", str(image), "--no-start", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["manifest"]["target"]["revision"], report["trial"]) == (
        "vllm-speculative",
        "1234abcd",
        None,
    )


def test_the_trial_is_the_image_s_own_command_as_its_user(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = '{"problem": null, "start_s": 1.5, "calls": [], "drafted": 9, "accepted": 7}'
    ran = bubblewrap(tmp_path, monkeypatch, f"echo '{report}'")
    words = ["--model", str(DEMO / "target"), "--serve=--gpus", "--serve=2xH100"]
    assert main(["image", "check", str(image), *words]) == 0
    assert capsys.readouterr().out.endswith("started in 1.5 s, answered a call, 7 of 9 drafts accepted\n")
    arguments = ran.read_text().splitlines()
    assert {"--unshare-all", "--ro-bind", "--clearenv"} <= set(arguments)
    assert arguments[arguments.index("--uid") + 1] == "10001"
    assert arguments[-4:-1] == ["python3", "-m", "dovetail.image.trial"]
    wish = json.loads(arguments[-1])
    assert wish["command"] == [*CONFIG["Entrypoint"], "/models/served", "--gpus", "2xH100"]
    assert (wish["port"], wish["drafts"]) == (8000, True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('echo \'{"problem": "no draft was accepted"}\'; exit 1', "is not right: no draft was accepted"),
        ("echo cannot create namespace >&2; exit 1", "the image does not start: cannot create namespace"),
        ("exit 3", "the image does not start: exit code 3"),
    ],
)
def test_an_image_that_does_not_draft_is_refused(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Any, lines: str, message: str
) -> None:
    bubblewrap(tmp_path, monkeypatch, lines)
    assert message in refusal(image)


def test_without_bubblewrap_the_message_says_what_to_install(
    image: Path, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "`apt-get install bubblewrap`, or --no-start" in refusal(image)


def test_a_drafter_for_another_target_is_refused_with_both_values(
    image: Path, other_target: Path, refusal: Any
) -> None:
    error = refusal(image, "--no-start", "--model", other_target)
    assert "192 wide" in error and "the target's hidden_size is 256" in error


def test_an_altered_drafter_is_refused(tmp_path: Path, models: Path, refusal: Any) -> None:
    files = below(models, "models")
    files["models/drafter/model.safetensors"] += b"x"
    altered = write_layout(tmp_path / "altered", [layer(files)])
    assert "model.safetensors has 2111361 bytes, and the manifest says 2111360" in refusal(altered, "--no-start")


def test_a_later_layer_that_removes_a_file_is_seen(tmp_path: Path, models: Path, refusal: Any) -> None:
    layers = [layer(below(models, "models")), layer({"models/drafter/.wh.config.json": b""})]
    assert "config.json is missing, and the manifest lists it" in refusal(
        write_layout(tmp_path / "cut", layers), "--no-start"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"User": ""}, "the image's user is 'root'"),
        ({"User": "vllm"}, "the image's user is 'vllm': a cluster that runs no root needs a number above 0"),
        ({"User": "0:0"}, "the image runs as root (user 0)"),
        ({"ExposedPorts": {"80/tcp": {}}}, "exposes port 80, which user 10001:10001 cannot have: use 1024 or above"),
        ({"ExposedPorts": None}, "the image exposes no port: it must expose one TCP port"),
        ({"ExposedPorts": {"8000/tcp": {}, "9000/tcp": {}}}, "the image exposes 8000, 9000"),
        ({"Labels": {}}, "is no image of Dovetail: its label io.dovetail.image.kind is None"),
    ],
)
def test_a_user_or_a_port_that_cannot_be_had_is_refused(
    tmp_path: Path, refusal: Any, changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(write_layout(tmp_path / "image", [], CONFIG | changes), "--no-start")


def test_an_image_without_manifest_is_refused(tmp_path: Path, refusal: Any) -> None:
    image = write_layout(tmp_path / "image", [layer({"etc/a": b""})])
    assert "manifest.json is missing" in refusal(image, "--no-start")


def test_a_folder_that_is_not_there_is_refused(refusal: Any) -> None:
    assert "there is no folder /nowhere" in refusal("/nowhere")


def test_an_image_by_name_comes_from_a_builder(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "buildah"
    program.write_text(f'#!/bin/sh\nto=${{4#oci:}}; /bin/cp -r {image} "${{to%:latest}}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["image", "check", "localhost/mine:latest", "--no-start"]) == 0
    assert capsys.readouterr().out.startswith("vllm-speculative sha256:")
