"""OCI layouts: digests are checked, later layers win, and nothing is written outside the folder."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from dovetail.errors import CheckpointError
from dovetail.image.layout import read_layout
from tests.image.layouts import CONFIG, layer, write_layout


def _link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.linkname = kind, target
    return member


def _files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_layers_replace_and_remove(tmp_path: Path) -> None:
    layers = [
        layer({"etc/a": b"1", "etc/b": b"1", "opt/x/1": b"1", "opt/x/2": b"1", "run/f": b"1"}),
        layer({"etc/a": b"2", "etc/.wh.b": b"", "opt/x/.wh..wh..opq": b"", "opt/x/3": b"2", ".wh.run": b""}),
    ]
    layout = read_layout(write_layout(tmp_path / "layout", layers))
    layout.unpack(tmp_path / "root")
    assert _files(tmp_path / "root") == {"etc/a": "2", "opt/x/3": "2"}
    layout.unpack(tmp_path / "part", "opt/x")
    assert _files(tmp_path / "part") == {"opt/x/3": "2"}
    assert layout.size == sum(map(len, layers))


def test_a_file_replaces_a_folder_and_a_link(tmp_path: Path) -> None:
    layers = [layer({"a/b": b"1", "l": _link("a")}), layer({"a": b"2", "l": b"3"})]
    read_layout(write_layout(tmp_path / "layout", layers)).unpack(tmp_path / "root")
    assert _files(tmp_path / "root") == {"a": "2", "l": "3"}


def test_devices_are_left_out(tmp_path: Path) -> None:
    device, pipe = _link("", tarfile.CHRTYPE), _link("", tarfile.FIFOTYPE)
    layers = [layer({"dev/null": device, "dev/pipe": pipe, "a": b"1"})]
    read_layout(write_layout(tmp_path / "layout", layers)).unpack(tmp_path / "root")
    assert _files(tmp_path / "root") == {"a": "1"}


@pytest.mark.parametrize(
    "files",
    [
        {"../outside": b"1"},
        {"a/../../outside": b"1"},
        {"l": _link(".."), "l/outside": b"1"},
        {"l": _link("/"), "l/outside-of-the-image": b"1"},
        {"h": _link("../outside", tarfile.LNKTYPE)},
        {"../.wh.outside": b""},
        {"l": _link(".."), "l/.wh.outside": b""},
        {"l": _link(".."), "l/.wh..wh..opq": b""},
    ],
)
def test_a_layer_that_reaches_outside_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "outside").write_text("mine")
    layout = read_layout(write_layout(tmp_path / "layout", [layer(files)]))
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        layout.unpack(tmp_path / "out" / "root")
    assert (tmp_path / "out" / "outside").read_text() == "mine"
    assert not Path("/outside-of-the-image").exists()


def test_a_layer_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    layout = read_layout(write_layout(tmp_path / "layout", [b"no archive"]))
    with pytest.raises(CheckpointError, match=r"layer sha256:[0-9a-f]{64} cannot be unpacked"):
        layout.unpack(tmp_path / "root")


def test_altered_missing_and_unreadable_blobs_are_refused(tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "layout", [layer({"a": b"1"})])
    last = read_layout(folder).layers[0].digest
    blob = folder / "blobs" / "sha256" / last.removeprefix("sha256:")
    blob.write_bytes(blob.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=f"blob {last} was altered"):
        read_layout(folder)
    blob.unlink()
    with pytest.raises(CheckpointError, match=f"blob {last} is missing"):
        read_layout(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "is no OCI layout: it has no index.json"),
        ("{", "index.json cannot be read"),
        ({"manifests": []}, "holds 0 images: give a layout with one"),
        ({"manifests": [{"digest": "sha256:../../etc/passwd", "size": 1}]}, "is no SHA-256 digest"),
        ({"manifests": [{"digest": "md5:00", "size": 1}]}, "'md5:00' is no SHA-256 digest"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: object, message: str) -> None:
    if index is not None:
        (tmp_path / "index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        read_layout(tmp_path)


def test_the_config_says_how_a_container_starts(tmp_path: Path) -> None:
    layout = read_layout(write_layout(tmp_path / "layout", []))
    assert (layout.config.user, layout.config.entrypoint) == (CONFIG["User"], CONFIG["Entrypoint"])
    assert layout.labels == CONFIG["Labels"]
    assert read_layout(write_layout(tmp_path / "bare", [], {})).labels == {}
