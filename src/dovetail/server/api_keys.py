"""API keys. They are never on a command line, which is visible to every user of the machine."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dovetail.errors import PlanError
from dovetail.gateway.limits.keys import Keyring
from dovetail.gateway.store.interface import Store
from dovetail.plan import Plan
from dovetail.server.hangup import Reload
from dovetail.server.key_file import read_keys, reload_keys
from dovetail.server.shared_store import shared_store

#: The environment variable with the key of the server's clients, for a server without a file of its key.
CLIENT_KEY = "DOVETAIL_API_KEY"


class ClientKeys(NamedTuple):
    """The keys of a server's clients: one without a name, named ones, both, or none.

    `file`: where the named keys are. `store`: where several gateways count what they use, and keep what their clients
    come back for.
    """

    single: str | None = None
    named: Keyring | None = None
    file: Path | None = None
    store: Store | None = None

    @property
    def needed(self) -> bool:
        """Whether clients need a key."""
        return self.single is not None or self.named is not None

    @property
    def reloads(self) -> list[Reload]:
        """What reads the named keys again."""
        return [] if self.named is None or self.file is None else [partial(reload_keys, self.named, self.file)]


NO_KEYS = ClientKeys()


def client_keys(plan: Plan) -> ClientKeys:
    """The keys of the plan's server. Raises `PlanError`."""
    file = None if plan.value("api_keys") is None else Path(plan.value("api_keys"))
    single, named = client_key(plan), None if file is None else Keyring(read_keys(file))
    store = shared_store(plan)
    if named is not None and store is not None:
        named.share(store)
    return ClientKeys(single, named, file, store)


def client_key(plan: Plan) -> str | None:
    """The key without a name; None if there is none. Raises `PlanError`."""
    if plan.value("api_key_file") is not None or CLIENT_KEY not in os.environ:
        return read_key(plan, "api_key_file")
    return _checked(os.environ[CLIENT_KEY], f"the environment variable {CLIENT_KEY}")


def read_key(plan: Plan, setting: str) -> str | None:
    """The key in the file that the setting names; None if it names no file. Raises `PlanError`."""
    path = plan.value(setting)
    return None if path is None else key_in(path, setting)


def key_in(path: str, setting: str) -> str:
    """The key in the file that `setting` names. Raises `PlanError`."""
    try:
        key = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{setting} {path} cannot be read as ASCII text") from error
    return _checked(key, f"{setting} {path}")


def _checked(key: str, where: str) -> str:
    if not key.isascii() or len(key.split()) != 1:
        raise PlanError(f"{where} must hold one key, on one line")
    return key.strip()
