"""The images that there are: what goes into each, and what its base must hold."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True):
    """A target of `deploy/image/Dockerfile`.

    `locks`: the lock files of `deploy/image` whose wheels it may install. `torch`: whether it gets torch too.
    `drafter`: whether a drafter goes in. `base`: what its base must hold. `contents`: its parts, with the reason for
    each.
    """

    name: str
    base: str
    locks: tuple[str, ...]
    contents: tuple[tuple[str, str], ...]
    torch: bool = False
    drafter: bool = False


_PYTHON = "Python 3.11 or later, such as a Debian with python3 and libstdc++6"
_VLLM = "vLLM 0.32 or 0.33 for the Python that `python3` is, such as vllm/vllm-openai"
_PLUGIN = ("Dovetail and what it needs that the base lacks", "parsers, scheduler and gate inside vLLM; its own gateway")
TARGETS = (
    Target(
        "gateway",
        _PYTHON,
        ("gateway.lock",),
        (
            ("Dovetail without weights and torch", "it fronts engines elsewhere and computes no tokens"),
            ("44 Python packages of gateway.lock", "HTTP, tokenizers, grammars, the hub's client"),
        ),
    ),
    Target(
        "engine",
        _PYTHON,
        ("gateway.lock", "engine.lock"),
        (
            ("Dovetail with the demo pair", "it answers at once, without a network"),
            ("torch for CPU and the Python packages of both locks", "the embedded engine"),
        ),
        torch=True,
    ),
    Target("vllm", _VLLM, ("gateway.lock",), (_PLUGIN,)),
    Target(
        "vllm-speculative",
        _VLLM,
        ("gateway.lock",),
        (
            _PLUGIN,
            ("/models/drafter", "the drafter's files, as a layer of their own"),
            ("/models/target/config.json", "so that the fit can be checked again"),
            (
                "/models/manifest.json, /models/serve.yaml",
                "what the drafter is for, and the settings it is served with",
            ),
        ),
        drafter=True,
    ),
)
BY_NAME = {target.name: target for target in TARGETS}
