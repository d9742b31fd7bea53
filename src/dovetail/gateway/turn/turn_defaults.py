"""What an operator may set about turns."""

from __future__ import annotations

import secrets

import msgspec

from dovetail.checkpoints.fixed_sampling import FixedSampling
from dovetail.formats.answers.tool_choice import Strict


class TurnDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of turns. A request may override `strict`, `no_repair` and `default_max_tokens`.

    `strict` is the level of tools when neither the request nor the tool has one. `no_repair` names the kinds of history
    repair to leave off. `default_max_tokens` limits the answers to requests without a limit (None: the rest of the
    context). `reasoning_budget` is the most tokens of reasoning in answers to requests without a budget (None: any
    number). Only an engine that enforces constraints keeps to it.

    `fixed_sampling` has the values that requests may have in each sampling field (None: any). With `gate_override`, a
    request may switch the gate off for itself. `record_key` signs the records of answers, which clients return in their
    next request. Servers that share their clients share the key.
    """

    strict: Strict = "schema"
    no_repair: frozenset[str] = frozenset()
    default_max_tokens: int | None = None
    reasoning_budget: int | None = None
    fixed_sampling: FixedSampling | None = None
    gate_override: bool = True
    record_key: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(32))
