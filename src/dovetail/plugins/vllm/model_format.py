"""The format and the tokenizer of the model that this process serves."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import dovetail
from dovetail.errors import DovetailError, PlanError
from dovetail.formats.base import Format
from dovetail.formats.registry import FAMILIES
from dovetail.tokens import Tokenizer

_log = logging.getLogger("vllm.dovetail")
#: The formats that the server's parsers may mean; none if they are vLLM's own. A process serves one model.
_candidates: tuple[str, ...] = ()


def set_candidates(candidates: tuple[str, ...]) -> None:
    """Called when vLLM has combined its parsers from Dovetail's, which may mean the formats `candidates`."""
    global _candidates
    _candidates = candidates


def format_served(tokenizer: Any) -> Format | None:
    """The format of the server's parsers; None if they are vLLM's own."""
    return format_of(_candidates, tokenizer) if _candidates else None


def format_of(candidates: tuple[str, ...], tokenizer: Any) -> Format:
    """The one of `candidates` that the tokenizer's checkpoint uses, else the first. Raises `PlanError`."""
    if len(candidates) == 1 and candidates[0] in FAMILIES:
        return _by_name(candidates[0])
    return _detected(candidates, _folder(tokenizer))


@functools.cache
def _by_name(name: str) -> Format:
    return dovetail.format(name)


@functools.cache
def _detected(candidates: tuple[str, ...], folder: Path | None) -> Format:
    if folder is not None:
        try:
            detected = dovetail.format(folder, generic_tools=False)  # vLLM renders, with the template alone
        except DovetailError as error:
            _log.warning("the format of %s was not detected: %s", folder, error)
        else:
            if detected.name in candidates or candidates[0] not in FAMILIES:
                return detected
    if candidates[0] not in FAMILIES:
        raise PlanError(
            f"dovetail_{candidates[0]} is made from a checkpoint's chat template, and no template was found"
        )
    return _by_name(candidates[0])


def tokenizer_of(tokenizer: Any) -> Tokenizer | None:
    """Dovetail's own copy of the tokenizer that vLLM loaded; None, with a warning, if its files cannot be read.

    Without it, parsers see only text, and take any text that spells a marker for the marker.
    """
    folder = _folder(tokenizer)
    return None if folder is None else _checked(folder, tokenizer)


@functools.lru_cache(16)  # vLLM has several copies of one tokenizer
def _checked(folder: Path, tokenizer: Any) -> Tokenizer | None:
    own = _read(folder)
    differing = (
        [text for text, token in own.control.items() if tokenizer.convert_tokens_to_ids(text) != token] if own else []
    )
    if differing:
        _warn(f"{differing[0]} of {folder} has another id in vLLM")
        return None
    return own


@functools.lru_cache(4)
def _read(folder: Path) -> Tokenizer | None:
    try:
        return dovetail.tokenizer(folder)
    except DovetailError as error:
        _warn(str(error))
        return None


def _folder(tokenizer: Any) -> Path | None:
    """Where the tokenizer was loaded from: a folder, or the hub's copy on this machine."""
    name = getattr(tokenizer, "name_or_path", None)
    if not isinstance(name, str) or not name:
        _warn("vLLM's tokenizer has no name_or_path")
        return None
    return _on_disk(name)


@functools.cache
def _on_disk(name: str) -> Path | None:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # the hub's library raises many kinds for a model that is not on this machine
        _warn(f"the files of {name} are not on this machine")
        return None


@functools.cache
def _warn(why: str) -> None:
    _log.warning("Dovetail's parsers see only text and no token ids: %s", why)
