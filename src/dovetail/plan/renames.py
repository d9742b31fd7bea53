"""Reads settings by other names, which vLLM and its patched builds use or used, and notes each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import PlanError

#: First name of a member of --speculative-config (vLLM pull request #40611) -> its name in vLLM 0.32 and 0.33.
MEMBERS = {
    "draft_attention_backend": "attention_backend",
    "draft_kv_cache_dtype": "kv_cache_dtype",
    "rejection_sample_method": "draft_sample_method",
}
#: Environment variable of vLLM or of a patched build -> our setting.
VARIABLES = {
    "VLLM_SPECULATIVE_DISABLE_ABOVE_SEQ_LEN": "speculate_below_context",  # vLLM pull request #40613, not merged
    "VLLM_ATTENTION_BACKEND": "attention_backend",  # vLLM 0.32 and 0.33 know --attention-backend alone
}
#: Called with our name of a setting, its value, and the name that people wrote.
_Add = Callable[[str, Any, str], None]


def translated(
    values: Mapping[str, Any], where: str, aliases: Mapping[str, str], members: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return `values` by our names, and a note for every other name among them. Unknown names are left unchanged.

    `aliases`: other name of a setting -> setting. `members`: member of --speculative-config -> setting.
    Raises `PlanError` naming `where`, if two names set the same setting.
    """
    by_name: dict[str, Any] = {}
    original_names: dict[str, str] = {}
    notes: list[str] = []

    def add(name: str, value: Any, original: str) -> None:
        if name in original_names:
            raise PlanError(f"{where}: {original_names[name]} and {original} both set {name}: keep one of them")
        by_name[name], original_names[name] = value, original
        if name != original:
            notes.append(f"{where}: {original} is {name} here")

    for name, value in values.items():
        if name == "speculative_config" and isinstance(value, Mapping):
            for member, inner in value.items():
                _add_member(member, inner, where, members, add)
        elif name == "rejection_sample_method":
            _add_member(name, value, where, members, add)
        elif name == "env" and isinstance(value, Mapping):
            for variable in sorted(value.keys() & VARIABLES.keys()):
                add(VARIABLES[variable], _number(value[variable]), variable)
            add(name, {variable: inner for variable, inner in value.items() if variable not in VARIABLES}, name)
        else:
            add(aliases.get(name, name), value, name)
    return by_name, notes


def _add_member(name: str, value: Any, where: str, members: Mapping[str, str], add: _Add) -> None:
    # This member once set both the sampling and the verification of drafts; only sampling is a setting here.
    if name == "rejection_sample_method" and value != "probabilistic":
        raise PlanError(
            f"{where}: rejection_sample_method is {value!r}: only 'probabilistic' can be read, as draft_sampling"
        )
    setting = members.get(MEMBERS.get(name, name))
    if setting is None:
        raise PlanError(
            f"{where}: speculative_config: there is no setting for {name!r}; its members are {', '.join(members)}"
        )
    add(setting, value, name if name == setting else f"speculative_config {name}")


def _number(value: Any) -> Any:
    """The number in the text of an environment variable; any other value unchanged."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
