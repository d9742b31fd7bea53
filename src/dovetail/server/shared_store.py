"""The store that several gateways share. Its password is never on a command line, which all users of a machine see."""

from __future__ import annotations

import contextlib
import os

from dovetail.errors import PlanError
from dovetail.gateway.store.interface import Store, StoreError
from dovetail.gateway.store.opened import opened_store
from dovetail.plan import Plan

#: The environment variables with the URL of a store, for a plan without one, and with the password of either.
STORE, PASSWORD = "DOVETAIL_STORE", "DOVETAIL_STORE_PASSWORD"
_TIMEOUT_S = 0.5


def shared_store(plan: Plan) -> Store | None:
    """The plan's store, which has answered; None if it has none. Raises `PlanError`."""
    url = plan.value("store") or os.environ.get(STORE)
    if not url:
        return None
    try:
        with contextlib.ExitStack() as stack:
            store = opened_store(url, plan.value("store_timeout") or _TIMEOUT_S, os.environ.get(PASSWORD))
            stack.callback(store.close)
            store.check()
            stack.pop_all()
    except StoreError as error:
        raise PlanError(f"the store cannot be used: {error}") from error
    return store
