"""The base of an image: a name with its digest, or an OCI layout on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.errors import PlanError

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")


def checked_base(base: str) -> str:
    """`base`, if it always means the same files. Raises `PlanError` for a tag, which may mean others tomorrow."""
    if base.startswith("oci:"):
        folder = Path(base.removeprefix("oci:").partition(":")[0])
        if not (folder / "index.json").is_file():
            raise PlanError(f"--base {base}: {folder} is no OCI layout, it has no index.json")
        return f"oci:{folder.resolve()}"
    if _PINNED.fullmatch(base):
        return base
    name, _, digest = base.partition("@")
    if digest:
        raise PlanError(f"--base {base}: a digest is sha256: and 64 hexadecimal digits")
    raise PlanError(
        f"--base {base} is a tag, which may name other files tomorrow: give {name.rpartition(':')[0] or name}@sha256:… "
        f"(`skopeo inspect docker://{name}` shows the digest), or oci:FOLDER"
    )
