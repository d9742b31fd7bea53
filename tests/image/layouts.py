"""Writes OCI layouts by hand, as the specification has them, for tests of what reads them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "User": "10001:10001",
    "Env": ["PATH=/usr/bin", "HOME=/tmp"],
    "Entrypoint": ["python3", "-m", "dovetail", "serve"],
    "WorkingDir": "/tmp",
    "Labels": {"io.dovetail.image.kind": "vllm-speculative"},
    "ExposedPorts": {"8000/tcp": {}},
}


def layer(files: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A layer as a gzipped tar: path -> content, or a member without content such as a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = path
                archive.addfile(content)
            else:
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write_layout(folder: Path, layers: Sequence[bytes], config: Mapping[str, Any] = CONFIG) -> Path:
    (folder / "blobs" / "sha256").mkdir(parents=True)
    manifest = {
        "schemaVersion": 2,
        "config": _blob(folder, json.dumps({"config": config}).encode()),
        "layers": [_blob(folder, each) for each in layers],
    }
    index = {"schemaVersion": 2, "manifests": [_blob(folder, json.dumps(manifest).encode())]}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def below(folder: Path, path: str) -> dict[str, bytes]:
    """The files of a folder, as the content of a layer that has them below `path`."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {f"{path}/{file.relative_to(folder)}": file.read_bytes() for file in files}


def _blob(folder: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}
