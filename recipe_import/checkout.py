"""Reads a git repository of vLLM's recipes at its commit, from a work tree or a bare directory."""

from __future__ import annotations

import datetime
import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

#: The feature of a model's file that holds its speculative setup.
SPECULATION = "spec_decoding"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Overrides(msgspec.Struct, frozen=True):
    """Arguments in place of others, on some GPUs."""

    args: tuple[str, ...] = ()


class Mode(msgspec.Struct, frozen=True):
    """One way to draft. `variants`: the checkpoints that have it, None for all. `hardware`: GPU -> "unsupported"."""

    args: tuple[str, ...] = ()
    variants: tuple[str, ...] | None = None
    hardware_overrides: Mapping[str, Overrides] = {}
    hardware: Mapping[str, str] = {}


class Feature(Mode, frozen=True):
    """A feature with arguments of its own, or with several `modes`, of which one is chosen."""

    default_mode: str | None = None
    modes: Mapping[str, Mode] = {}


class Variant(msgspec.Struct, frozen=True):
    """A checkpoint of the model. `model_id` is None for the model's own.

    `supported_hardware`: the GPUs that it runs on, None if the file does not say. `precision_hardware`: more GPUs than
    its precision was made for.
    """

    model_id: str | None = None
    precision: str = ""
    supported_hardware: tuple[str, ...] | None = None
    precision_hardware: Mapping[str, Any] | None = None
    extra_args: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = {}
    default_modes: Mapping[str, str] = {}
    hardware_overrides: Mapping[str, Any] = {}


class Model(msgspec.Struct, frozen=True):
    model_id: str
    base_args: tuple[str, ...] = ()
    base_env: Mapping[str, str] | None = None


class Meta(msgspec.Struct, frozen=True):
    date_updated: datetime.date
    hardware: Mapping[str, str] | None = None


class ModelFile(msgspec.Struct, frozen=True):
    """A model's file, as far as it is read here."""

    meta: Meta
    model: Model
    variants: Mapping[str, Variant]
    features: Mapping[str, Feature] | None = None
    hardware_overrides: Mapping[str, Any] | None = None
    strategy_overrides: Mapping[str, Any] | None = None

    @property
    def speculation(self) -> Feature | None:
        return (self.features or {}).get(SPECULATION)


class Checkout(msgspec.Struct, frozen=True):
    """`date`: of the commit. `models`: path below models/ without .yaml, such as "zai-org/GLM-5" -> the file's text.
    `generations`: the source's name of a GPU -> its generation.
    """

    commit: str
    date: datetime.date
    models: Mapping[str, str]
    generations: Mapping[str, str]


def read(repository: Path) -> Checkout:
    """Read the commit that is checked out in `repository`. Raises `CalledProcessError` if it is no git repository."""
    commit, _, date = _git(repository, "log", "-1", "--format=%H %cs").decode().strip().partition(" ")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(_git(repository, "archive", commit, "models", "taxonomy.yaml"))) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None and member.name.endswith(".yaml"):
                files[member.name] = content.read().decode()
    hardware = yaml.load(files.pop("taxonomy.yaml"), Loader=_LOADER)["hardware_profiles"]
    models = {name.removeprefix("models/").removesuffix(".yaml"): text for name, text in files.items()}
    return Checkout(
        commit=commit,
        date=datetime.date.fromisoformat(date),
        models=dict(sorted(models.items(), key=lambda item: item[0].casefold())),
        generations={name: profile["generation"] for name, profile in hardware.items()},
    )


def parsed(name: str, text: str) -> ModelFile:
    """The model's file. Raises `ValueError` naming it for a file of another shape."""
    try:
        return msgspec.convert(yaml.load(text, Loader=_LOADER), ModelFile)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(f"models/{name}.yaml cannot be read: {' '.join(str(error).split())}") from error


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *arguments], check=True, capture_output=True).stdout
