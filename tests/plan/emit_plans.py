"""Plans to write as commands: one from a few settings, one from every recipe."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dovetail.plan import recipe
from dovetail.plan.emit import Command, sglang, trtllm, vllm
from dovetail.plan.layers import Layer, Setting, overlay

Settings = dict[str, Setting[Any]]
COMMANDS = {"vllm": vllm.command, "sglang": sglang.command, "trtllm": trtllm.command}
#: Text that shells and YAML give a meaning to.
NASTY = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("'\"`$\\\n\r !#&|;<>(){}*?~=%\x85\u2028"),
    min_size=1,
    max_size=12,
)


def settings_of(**values: Any) -> Settings:
    return {name: Setting(value, "test") for name, value in ({"target": "Qwen/Qwen3-8B"} | values).items()}


DRAFTING = settings_of(drafter="RedHatAI/Qwen3-8B-speculator.eagle3", method="eagle3", draft_tokens=3)


def _of_recipe(known: recipe.Recipe) -> Settings:
    """The recipe's settings for a model that it matches, over the defaults that a whole plan would add."""
    match = known.match or recipe.Conditions()
    model: dict[str, Any] = {"target": known.example or (match.model or ("org/model",))[0]}
    if match.drafter:
        model["drafter"] = match.drafter[0]
    defaults = {"method": "eagle3", "draft_tokens": 3, "context": 32768, "host": "127.0.0.1", "port": 8000}
    defaults |= {"format": "kimi_k25", "strict": "schema", "no_repair": "none", "threads": None, "gate": None}
    return overlay([recipe.layer(known), Layer("command line", model), Layer("default", defaults)])


RECIPES = {known.name: _of_recipe(known) for known in recipe.every()}


def flags_of(command: Command) -> dict[str, str | None]:
    """Flag -> its value, None for a switch."""
    flags: dict[str, str | None] = {}
    for argument in command.arguments:
        assert argument[0] not in flags
        flags[argument[0]] = argument[1] if len(argument) > 1 else None
    return flags
