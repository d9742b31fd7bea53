"""Runs a program on an image's files with bubblewrap: read-only, as its user, without a network but loopback."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.errors import PlanError
from dovetail.image.layout import Config

_PRIVILEGED = 1024  # ports below are root's


def user_of(config: Config) -> tuple[int, int]:
    """The image's user and group. Raises `PlanError` for root, and for names, which a sandbox cannot look up."""
    user, _, group = config.user.partition(":")
    if not user.isdecimal() or not (group or user).isdecimal():
        raise PlanError(
            f"the image's user is {config.user or 'root'!r}: a cluster that runs no root needs a number above 0 (USER)"
        )
    if int(user) == 0:
        raise PlanError("the image runs as root (user 0): set USER to a number above 0")
    return int(user), int(group or user)


def port_of(config: Config) -> int:
    """The image's one TCP port. Raises `PlanError` for none, several, and one that its user cannot have."""
    ports = [port.removesuffix("/tcp") for port in config.exposed_ports or {}]
    if len(ports) != 1 or not ports[0].isdecimal():
        raise PlanError(f"the image exposes {', '.join(ports) or 'no port'}: it must expose one TCP port")
    if int(ports[0]) < _PRIVILEGED:
        raise PlanError(f"the image exposes port {ports[0]}, which user {config.user} cannot have: use 1024 or above")
    return int(ports[0])


def sandboxed(config: Config, root: Path, mounts: Mapping[Path, str], program: Sequence[str]) -> list[str]:
    """The command that runs `program` on the files of `root`. `mounts`: a folder here -> its path there, read-only.

    Raises `PlanError` without bubblewrap, and as `user_of` does.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise PlanError(
            "no bubblewrap on this machine to start the image in: `apt-get install bubblewrap`, or --no-start"
        )
    user, group = user_of(config)
    variables = [word for each in config.env for word in ("--setenv", *each.partition("=")[::2])]
    binds = [word for here, there in mounts.items() for word in ("--ro-bind", str(here.resolve()), there)]
    return [
        *(bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", *variables),
        # /sys as in any container: vLLM counts the cores by it.
        *("--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"),
        *("--tmpfs", "/tmp", *binds),
        *("--uid", str(user), "--gid", str(group), "--chdir", config.working_dir or "/"),
        *program,
    ]
