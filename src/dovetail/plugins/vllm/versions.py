"""Which versions of vLLM this plugin is for."""

from __future__ import annotations

import re

from dovetail.errors import PlanError

#: Those that the tests run against.
TESTED = ((0, 32), (0, 33))


def check(version: str, what: str) -> None:
    """Raise `PlanError`, naming the range, if `what` was not tested with this version of vLLM."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) not in TESTED:
        tested = " and ".join(f"{major}.{minor}" for major, minor in TESTED)
        raise PlanError(
            f"{what} works with vLLM {tested}, and this is vLLM {version}: install one of these, or leave {what} out"
        )


def check_installed(what: str) -> None:
    """`check` of the vLLM that this process runs."""
    import vllm

    check(vllm.__version__, what)
