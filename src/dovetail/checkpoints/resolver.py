"""Finds checkpoints by the names that users give them, and reads each one once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dovetail.checkpoints import hub
from dovetail.checkpoints.drafter import Drafter, read_drafter
from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_config
from dovetail.checkpoints.methods import is_drafter
from dovetail.checkpoints.target import Target, read_target
from dovetail.errors import DovetailError, PlanError

_T = TypeVar("_T")


class CheckpointResolver:
    """Checkpoints by name: a folder, a GGUF file or a hub id. What was read once, or failed once, is remembered.

    `revision` is the target's revision on the hub; drafters and tokenizers are used at their newest.
    """

    def __init__(self, revision: str | None = None) -> None:
        self._revision = revision
        self._cache: dict[tuple[str, str, str | None], object] = {}

    def folder(self, name: str, revision: str | None = None) -> str:
        """The folder of `name` on this machine. Raises `CheckpointError`, or `PlanError` without the extra `hub`."""
        return self._once("folder", name, revision, lambda: hub.find(name, revision=revision))

    def target_folder(self, name: str) -> str:
        return self.folder(name, self._revision)

    def target(self, name: str) -> Target:
        """The target called `name`. Raises `CheckpointError`."""
        folder = self.target_folder(name)
        return self._once("target", name, None, lambda: read_target(folder, name))

    def drafter(self, name: str) -> Drafter:
        """The drafter called `name`. Raises `CheckpointError`."""
        folder = self.folder(name)
        return self._once("drafter", name, None, lambda: read_drafter(folder, name))

    def is_drafter(self, name: str) -> bool:
        """Whether the checkpoint is a drafter. False for one that cannot be read; its later use raises the error."""
        for revision in dict.fromkeys((self._revision, None)):
            try:
                config = read_config(self.folder(name, revision))
            except DovetailError:
                continue
            return is_drafter(Fields(config, f"{name}/config.json"))
        return False

    def verifier(self, name: str) -> str:
        """The target that the drafter `name` was made for: a folder beside the drafter or elsewhere, else a hub id.

        Raises `PlanError` when its config names no target.
        """
        declared = self.drafter(name).verifier
        if declared is None or "\0" in declared:
            raise PlanError(
                f"{name} is a drafter whose config names no target: give the target as MODEL and this as --drafter"
            )
        return hub.local_folder(declared, beside=self.folder(name)) or declared

    def _once(self, what: str, name: str, revision: str | None, read: Callable[[], _T]) -> _T:
        key = (what, name, revision)
        if key not in self._cache:
            try:
                self._cache[key] = read()
            except DovetailError as error:
                self._cache[key] = error
        cached = self._cache[key]
        if isinstance(cached, DovetailError):
            raise cached
        return cached  # type: ignore[return-value]
