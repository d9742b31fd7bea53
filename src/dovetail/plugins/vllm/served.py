"""What this process serves, once vLLM has put its parsers together: the format, and the tokenizer that goes with it."""

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
#: The formats that the server's parsers may stand for; none where they are not Dovetail's. A process has one model.
_candidates: tuple[str, ...] = ()


def serve(candidates: tuple[str, ...]) -> None:
    global _candidates
    _candidates = candidates


def format_served(tokenizer: Any) -> Format | None:
    """The format of the server's parsers; None where they are vLLM's own."""
    return format_of(_candidates, tokenizer) if _candidates else None


def format_of(candidates: tuple[str, ...], tokenizer: Any) -> Format:
    """The one of `candidates` that the tokenizer's checkpoint is of, or the first. Raises `PlanError`."""
    if len(candidates) == 1 and candidates[0] in FAMILIES:
        return _known(candidates[0])
    return _looked_for(candidates, _folder(tokenizer))


@functools.cache
def _known(name: str) -> Format:
    return dovetail.format(name)


@functools.cache
def _looked_for(candidates: tuple[str, ...], folder: Path | None) -> Format:
    if folder is not None:
        try:
            found = dovetail.format(folder)
        except DovetailError as error:
            _log.warning("the format of %s was not found by looking: %s", folder, error)
        else:
            if found.name in candidates or candidates[0] not in FAMILIES:
                return found
    if candidates[0] not in FAMILIES:
        raise PlanError(
            f"dovetail_{candidates[0]} is made of a checkpoint's chat template, and there is none to look at"
        )
    return _known(candidates[0])


def tokenizer_of(tokenizer: Any) -> Tokenizer | None:
    """Dovetail's own view of the tokenizer that vLLM loaded; None, and a warning, where it has none.

    Without it, parsers go by the text alone, and markers are what spells them.
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
        _warn("vLLM's tokenizer does not say where it was loaded from")
        return None
    return _on_disk(name)


@functools.cache
def _on_disk(name: str) -> Path | None:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # of many kinds, all of which say that it is not there
        _warn(f"the files of {name} are not on this machine")
        return None


@functools.cache
def _warn(why: str) -> None:
    _log.warning("Dovetail's parsers go by the text and not by token ids: %s", why)
