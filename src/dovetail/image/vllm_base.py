"""The check inside a build: whether the base image holds a version of vLLM that Dovetail was tested with."""

from __future__ import annotations

import sys
from importlib import metadata

from dovetail.errors import PlanError
from dovetail.plugins.vllm.versions import check


def check_base() -> str:
    """The version of vLLM in this image. Raises `PlanError` if there is none, or one that was not tested."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError as error:
        raise PlanError(
            "the base holds no vLLM (for the Python that `python3` is): set --base to an image with vLLM, "
            "such as vllm/vllm-openai@sha256:…"
        ) from error
    check(version, "the image vllm")
    return version


def main() -> int:
    try:
        print(f"vLLM {check_base()}")
    except PlanError as error:
        print(f"dovetail: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
