"""The manifest of a drafter: every file has its digest, and a drafter that misfits its target is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.image import manifest
from dovetail.image.manifest import check_models, plan_for, read_manifest, write_models
from dovetail.plan import resolve
from tests.image.conftest import DEMO, planned


def test_the_manifest_names_the_pair_and_has_the_digest_of_every_file(models: Path) -> None:
    written = check_models(models)
    assert (written.target.name, written.target.revision, written.drafter.name) == ("target", "1234abcd", "drafter")
    assert (written.method, written.draft_tokens, written.recipes) == ("eagle3", 3, ())
    files = {each.path: (each.size, each.sha256) for each in written.files}
    assert files == {
        str(file.relative_to(models)): (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in models.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }
    assert {"drafter/model.safetensors", "target/config.json", "serve.yaml"} <= set(files)


def test_two_folders_of_one_plan_are_equal(models: Path, tmp_path: Path) -> None:
    write_models(planned(revision="1234abcd"), tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_bytes() == (models / "manifest.json").read_bytes()


def test_the_settings_are_those_of_the_plan(tmp_path: Path) -> None:
    written = write_models(planned(draft_tokens=2), tmp_path / "models")
    served = (tmp_path / "models" / "serve.yaml").read_text().splitlines()
    assert written.draft_tokens == 2
    assert served == ["engine: vllm", "drafter: /models/drafter", "method: eagle3", "draft_tokens: 2"]


def test_files_of_the_hub_s_cache_are_copied_and_not_linked(tmp_path: Path) -> None:
    (tmp_path / "drafter").mkdir()
    for file in (DEMO / "drafter").iterdir():
        (tmp_path / "drafter" / file.name).symlink_to(file)
    plan = planned(drafter=str(tmp_path / "drafter"))
    write_models(plan, tmp_path / "models")
    assert not any(file.is_symlink() for file in (tmp_path / "models").rglob("*"))
    check_models(tmp_path / "models")


def _cut(models: Path) -> None:
    weights = models / "drafter" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _flip(models: Path) -> None:
    weights = models / "drafter" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda models: (models / "drafter" / "config.json").unlink(), "drafter/config.json is missing, and the"),
        (_cut, "drafter/model.safetensors has 2111359 bytes, and the manifest says 2111360: it was altered"),
        (_flip, "drafter/model.safetensors has SHA-256 "),
        (lambda models: (models / "drafter" / "more.bin").touch(), "drafter/more.bin is not in the manifest"),
        (lambda models: (models / "drafter" / "link").symlink_to("config.json"), "is a link or a special file"),
        (lambda models: os.mkfifo(models / "pipe"), "is a link or a special file"),
        (lambda models: (models / "manifest.json").unlink(), "manifest.json is missing: this is no folder of"),
        (lambda models: (models / "manifest.json").write_text("{"), "manifest.json is no manifest: "),
        (lambda models: (models / "manifest.json").write_text('{"version": 1}'), "is no manifest: "),
    ],
)
def test_a_folder_that_is_not_as_listed_is_refused(models: Path, spoil: object, message: str) -> None:
    spoil(models)  # type: ignore[operator]
    with pytest.raises(CheckpointError) as refused:
        check_models(models)
    assert message in refused.value.message
    assert "\n" not in refused.value.message


def test_a_later_version_is_refused(models: Path) -> None:
    file = models / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    with pytest.raises(CheckpointError, match="has version 2; this Dovetail reads version 1"):
        read_manifest(models)


def test_a_drafter_for_another_target_is_refused_with_both_values(models: Path, other_target: Path) -> None:
    with pytest.raises(PlanError, match=r"192 wide .*, the target's hidden_size is 256"):
        plan_for(read_manifest(models), models, other_target)


def test_the_target_inside_counts_too(models: Path, other_target: Path) -> None:
    """A manifest that was made again after the target was replaced is whole, and its drafter still does not fit."""
    shutil.copyfile(other_target / "config.json", models / "target" / "config.json")
    listed = json.loads((models / "manifest.json").read_text())
    listed["files"] = [
        {"path": each.path, "size": each.size, "sha256": each.sha256} for each in manifest._contents(models)
    ]
    (models / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(PlanError, match="does not fit"):
        check_models(models)


def test_a_plan_without_drafter_has_no_models(tmp_path: Path) -> None:
    plan = resolve(str(DEMO / "target"), {}, recipe="none", engine="vllm")
    with pytest.raises(PlanError, match="needs a drafter with files of its own: set --drafter FOLDER"):
        write_models(plan, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_inside_a_build_the_manifest_is_one_line_and_an_exit_code(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manifest.main([str(models)]) == 0
    assert capsys.readouterr().out == "drafter fits target: 4 files as listed\n"
    _flip(models)
    assert manifest.main([str(models)]) == 2
    assert capsys.readouterr().err.startswith("dovetail: ")


def test_an_error_is_a_dovetail_error(tmp_path: Path) -> None:
    with pytest.raises(DovetailError):
        check_models(tmp_path)
