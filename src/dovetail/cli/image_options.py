"""The command line of `dovetail image`."""

from __future__ import annotations

import argparse

_TARGETS = ("gateway", "engine", "vllm", "vllm-speculative")


def add_image(image: argparse.ArgumentParser) -> None:
    """Add the actions plan, build and check to the parser of `dovetail image`."""
    actions = image.add_subparsers(dest="action", metavar="ACTION", required=True)
    plan = actions.add_parser("plan", help="show what goes into each image, and why", allow_abbrev=False)
    plan.add_argument("--target", choices=_TARGETS, help="one of the images (default: all)")
    _add_drafter(plan)
    plan.add_argument("--json", action="store_true", help="print JSON")

    build = actions.add_parser("build", help="build an image with buildah, podman or docker", allow_abbrev=False)
    build.add_argument("--target", choices=_TARGETS, required=True, help="which image")
    build.add_argument("--base", metavar="NAME@sha256:…|oci:FOLDER", help="the image that it stands on")
    build.add_argument("--tag", metavar="NAME", help="name of the image (default: localhost/dovetail-TARGET:latest)")
    build.add_argument("--output", metavar="FOLDER", help="write the image as an OCI layout, too")
    build.add_argument("--builder", metavar="NAME", help="buildah, podman or docker (default: the first there is)")
    build.add_argument("--source", metavar="FOLDER", default=".", help="a checkout of Dovetail (default: here)")
    build.add_argument("--context", metavar="FOLDER", help="only write the context there, for `docker buildx bake`")
    _add_drafter(build)

    check = actions.add_parser("check", help="check a built image, and start it", allow_abbrev=False)
    check.add_argument("image", metavar="IMAGE|LAYOUT", help="an image's name, or the folder of an OCI layout")
    check.add_argument("--model", metavar="FOLDER", help="the target to serve: the drafter is checked against it, too")
    check.add_argument("--no-start", action="store_true", help="do not start it")
    check.add_argument("--no-drafts", action="store_true", help="accept that nothing drafts")
    check.add_argument(
        "--serve", metavar="WORD", action="append", default=[], help="an argument for the server, as --serve=--WORD"
    )
    check.add_argument("--json", action="store_true", help="print JSON")


def _add_drafter(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the drafter of vllm-speculative")
    group.add_argument("model", metavar="MODEL", nargs="?", help="the target that the drafter is for: folder or hub id")
    group.add_argument("--drafter", metavar="FOLDER", help="the drafter's folder")
    group.add_argument("--method", metavar="NAME", help="how it drafts (default: the drafter's)")
    group.add_argument(
        "--draft-tokens", metavar="K", type=int, help="draft tokens in one step (default: the drafter's)"
    )
    group.add_argument("--revision", metavar="REVISION", help="the target's revision on the hub")
    group.add_argument("--recipe", metavar="NAME|FILE|none", help="recipe to follow (default: those that fit)")
