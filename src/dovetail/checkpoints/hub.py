"""Finds the folder of a checkpoint by name: a local folder, a GGUF file's, or the small files of a model on the hub.

Weights are not fetched, because a plan needs only configs, the index of weights and the tokenizer. Names on the hub
need the extra `hub`. Which hub is asked, its cache and the access to it follow the environment of huggingface_hub
(HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dovetail.checkpoints.gguf.folder import gguf_folder, only_gguf
from dovetail.checkpoints.gguf.header import is_gguf
from dovetail.errors import CheckpointError, PlanError

#: The files that are fetched: config, quantization, index of weights, tokenizer, template.
FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tiktoken.model",
    "chat_template.*",
)
#: An owner and a name of letters, digits, dots and dashes (https://huggingface.co/docs/hub/repositories-settings).
ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find(name: str, *, revision: str | None = None) -> str:
    """The folder of the checkpoint `name`: a local folder, the one made of a GGUF file, or the hub's cache after
    fetching it at `revision`.

    Raises `CheckpointError` when there is none or access is refused, `PlanError` when the extra is missing.
    """
    if "\0" not in name and is_gguf(os.path.expanduser(name)):
        return gguf_folder(os.path.expanduser(name))
    folder = local_folder(name)
    if folder is not None:
        inside = only_gguf(Path(folder))
        return folder if inside is None else gguf_folder(inside)
    if not ID.fullmatch(name):
        raise CheckpointError(
            f"there is no folder {name}: give a checkpoint's folder, a GGUF file, or OWNER/NAME for a model on the hub"
        )
    return fetch(name, revision=revision)


def local_folder(name: str, *, beside: str | None = None) -> str | None:
    """The folder called `name`, relative to the folder `beside` or to the working directory; None if there is none."""
    if "\0" in name:
        return None
    for folder in (*([Path(beside) / name] if beside else []), Path(os.path.expanduser(name))):
        if name and folder.is_dir():
            return str(folder.resolve())
    return None


def fetch(name: str, *, revision: str | None = None) -> str:
    """The folder in the hub's cache that holds the small files of `name`. Raises as `find` does."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PlanError(
            f"there is no folder {name}, and names on the model hub need the package huggingface_hub: "
            "pip install 'dovetail[hub]', or give a downloaded folder"
        ) from error
    try:
        return str(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    # The versions of huggingface_hub use different HTTP libraries, whose errors have no common base class.
    except Exception as error:
        raise CheckpointError(_refusal(error, name, revision)) from error


def _refusal(error: Exception, name: str, revision: str | None) -> str:
    """What went wrong when fetching `name`, and what to do about it."""
    from huggingface_hub import errors

    model = f"{name} at revision {revision}" if revision else name
    cause = error.__cause__
    match error:
        case errors.GatedRepoError():
            return (
                f"no access to {name}: it is gated; accept its terms on the hub and log in (`hf auth login`, or "
                "HF_TOKEN)"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"there is no folder {name}, and no readable model of that name on the hub: check the spelling, or "
                "log in if it is private (`hf auth login`, or HF_TOKEN)"
            )
        case errors.RevisionNotFoundError():
            return f"{name} is on the hub, but has no revision {revision}: leave --revision out"
        case errors.HFValidationError():
            return f"{name} is not a valid name on the hub: {_first_line(error)}"
        case errors.HfHubHTTPError():
            return f"{model} could not be fetched, the hub answered: {_first_line(error)}"
        case errors.LocalEntryNotFoundError() | ConnectionError() if isinstance(cause, errors.HfHubHTTPError):
            return f"{model} could not be fetched, the hub answered: {_first_line(cause)}"
        case errors.LocalEntryNotFoundError() | ConnectionError():
            return (
                f"there is no folder {name}; the hub cannot be reached (no network, or HF_HUB_OFFLINE is set) and its "
                f"local cache does not hold all small files of {model}: give a downloaded folder, or connect once"
            )
    return f"{model} could not be fetched from the hub: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """The first line of a message of huggingface_hub; the lines below it only give general advice."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
