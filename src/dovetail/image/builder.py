"""The program that builds images here: buildah, podman or docker, and its commands."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dovetail.errors import PlanError

BUILDERS = ("buildah", "podman", "docker")
_LINES = 4  # of a builder's complaint
_INSTALL = "install one: `apt-get install buildah`, `apt-get install podman`, or Docker with its daemon"


class Builder(msgspec.Struct, frozen=True):
    """A builder by its name, and its program."""

    name: str
    program: str

    def build(
        self, context: Path, target: str, tag: str, arguments: Mapping[str, str], timestamp: int, *, layout: bool
    ) -> list[str]:
        """The command that builds `target` from the folder `context` and calls the image `tag`.

        `timestamp`: the seconds since 1970 that every file of the image gets, so that two builds are equal. `layout`:
        whether the image becomes an OCI layout, whose format has no HEALTHCHECK.
        """
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        common = ["--network", "none", "--target", target, "--tag", tag, *words]
        if self.name == "docker":
            epoch = ["--build-arg", f"SOURCE_DATE_EPOCH={timestamp}", "--provenance=false"]
            return [self.program, "buildx", "build", "--load", *epoch, *common, str(context)]
        # The format of Docker has HEALTHCHECK, and random names of containers, so that only layers are equal.
        fixed = ["--format", "oci" if layout else "docker", "--timestamp", str(timestamp), "--layers=false"]
        return [self.program, "build", *fixed, *common, str(context)]

    def push(self, tag: str, layout: Path) -> list[str]:
        """The command that writes the image `tag` as an OCI layout. Raises `PlanError` for docker, which cannot."""
        if self.name == "docker":
            raise PlanError("docker writes no OCI layout: use buildah or podman with --output, or leave --output out")
        return [self.program, "push", "--quiet", tag, f"oci:{layout}:latest"]

    def remove(self, tag: str) -> list[str]:
        return [self.program, "image", "rm", tag] if self.name == "docker" else [self.program, "rmi", tag]


def find_builder(name: str | None = None) -> Builder:
    """The builder called `name`, or the first that this machine has. Raises `PlanError`, which says what to install."""
    for each in BUILDERS if name is None else (name,):
        program = shutil.which(each)
        if program is not None and (each != "docker" or _daemon(program)):
            return Builder(each, program)
    if name is not None:
        raise PlanError(f"--builder {name}: it is not on this machine, or has no daemon; {_INSTALL}")
    raise PlanError(f"no builder of images on this machine (buildah, podman, or docker with its daemon): {_INSTALL}")


def _daemon(docker: str) -> bool:
    return (
        subprocess.run([docker, "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    )


def run_builder(command: Sequence[str], what: str = "the build") -> None:
    """Run a command of a builder. Raises `PlanError` with the message of Dovetail in its output, or with its end."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        own = [line.partition("dovetail: ")[2] for line in lines if "dovetail: " in line]
        raise PlanError(f"{what} failed: {own[-1] if own else ' '.join(lines[-_LINES:])}")
