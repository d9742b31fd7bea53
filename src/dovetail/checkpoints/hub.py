"""The folder of a checkpoint: a local one as it is, or the small files of a model on the Hugging Face hub.

Weights are not fetched: a plan reads configs, the index of weights and the tokenizer. Needs the extra `hub` for names
on the hub; which hub, its cache and access follow huggingface_hub's own environment (HF_ENDPOINT, HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dovetail.errors import CheckpointError, PlanError

#: What a plan reads: config, quantization, index, tokenizer, template.
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
#: https://huggingface.co/docs/hub/repositories-settings: an owner and a name of letters, digits, dots and dashes.
ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def local_folder(name: str, *, beside: str | None = None) -> str | None:
    """The folder called `name` in the folder `beside` or here, None if there is none."""
    if "\0" in name:
        return None
    for folder in (*([Path(beside) / name] if beside else []), Path(os.path.expanduser(name))):
        if name and folder.is_dir():
            return str(folder.resolve())
    return None


def find(name: str, *, beside: str | None = None, revision: str | None = None) -> str:
    """The folder of the checkpoint `name`: in the folder `beside`, or here, or fetched from the hub at `revision`.

    Raises `CheckpointError` where there is none or it may not be read, `PlanError` where the extra is missing.
    """
    folder = local_folder(name, beside=beside)
    if folder is not None:
        return folder
    if not ID.fullmatch(name):
        raise CheckpointError(
            f"there is no folder {name}: give a checkpoint's folder, or OWNER/NAME for a model on the hub"
        )
    return fetch(name, revision=revision)


def fetch(name: str, *, revision: str | None = None) -> str:
    """The hub's cache folder with the small files of `name`. Raises as `find` does."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise PlanError(
            f"there is no folder {name}, and names on the model hub need a package that is not here: "
            "pip install 'dovetail[hub]', or give a downloaded folder"
        ) from error
    at = f"{name} at revision {revision}" if revision else name
    try:
        return str(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"no access to {name}: it is gated; accept its terms at the hub and log in (`hf auth login`, or HF_TOKEN)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder {name}, and no model of that name on the hub that may be read: check the spelling, or "
            "log in if it is private (`hf auth login`, or HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} is on the hub, but has no revision {revision}: leave --revision out") from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{name} is no name that the hub has: {_line(error)}") from error
    except errors.HfHubHTTPError as error:
        raise CheckpointError(f"{at} could not be fetched, the hub answered: {_line(error)}") from error
    except (errors.LocalEntryNotFoundError, ConnectionError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise CheckpointError(f"{at} could not be fetched, the hub answered: {_line(error.__cause__)}") from error
        raise CheckpointError(
            f"there is no folder {name}; the hub cannot be reached (no network, or HF_HUB_OFFLINE is set) and its "
            f"cache here does not hold all small files of {at}: give a downloaded folder, or go on line once"
        ) from error
    # Its versions bring different HTTP libraries, whose errors have no common base.
    except Exception as error:
        raise CheckpointError(
            f"{at} could not be fetched from the hub: {type(error).__name__}: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    """The first line of a message, which in that library's is the whole matter."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
