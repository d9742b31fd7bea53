"""The versions of vLLM that this plugin works with."""

from __future__ import annotations

import re

from dovetail.errors import PlanError

#: The versions that the tests run against.
TESTED = ((0, 32), (0, 33))


def check(version: str, what: str) -> None:
    """Raise `PlanError`, with the supported versions, if `what` was not tested with this `version` of vLLM."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) not in TESTED:
        tested = " and ".join(f"{major}.{minor}" for major, minor in TESTED)
        raise PlanError(
            f"{what} works with vLLM {tested}, and this is vLLM {version}: install one of these, or leave {what} out"
        )


def check_installed(what: str) -> None:
    """`check` the vLLM of this process."""
    import vllm

    check(vllm.__version__, what)
