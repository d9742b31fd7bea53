"""codex: `codex exec` at a task, with the tools that it has for a model it does not know, or with its apply_patch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coding_agents import HOME, WINDOW, agent, binary
from common import KEY, MODEL, URL

#: codex has its apply_patch only for models that a catalogue declares with it.
CATALOGUE = {
    "models": [
        {
            "slug": MODEL,
            "display_name": MODEL,
            "description": None,
            "default_reasoning_level": "medium",
            "supported_reasoning_levels": [{"effort": "medium", "description": "medium"}],
            "shell_type": "unified_exec",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 1,
            "upgrade": None,
            "base_instructions": "You are a coding agent.",
            "supports_reasoning_summaries": True,
            "support_verbosity": False,
            "default_verbosity": None,
            "apply_patch_tool_type": "freeform",
            "truncation_policy": {"mode": "bytes", "limit": 10000},
            "supports_parallel_tool_calls": True,
            "context_window": WINDOW,
            "experimental_supported_tools": [],
        }
    ]
}
PROVIDER = f'{{name="dovetail", base_url="{URL}", wire_api="responses", env_key="DOVETAIL_KEY", request_max_retries=0}}'


def settings() -> list[str]:
    values = {"model_provider": "dovetail", "model_providers.dovetail": PROVIDER, "model_context_window": WINDOW}
    if os.environ.get("DOVETAIL_VARIANT") == "apply_patch":
        catalogue = Path("catalogue.json").absolute()
        catalogue.write_text(json.dumps(CATALOGUE))
        values["model_catalog_json"] = json.dumps(str(catalogue))
    return [word for name, value in values.items() for word in ("-c", f"{name}={value}")]


# The sandbox of codex needs rights that a container does not give; the task is confined to the scratch folder.
FLAGS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--model", MODEL, *settings())

agent(lambda prompt: [binary("codex"), "exec", *FLAGS, prompt], sees=True, CODEX_HOME=str(HOME), DOVETAIL_KEY=KEY)
