"""opencode: `opencode run` at a task, with its own tools."""

from __future__ import annotations

import json

from coding_agents import SCRATCH, WINDOW, agent, binary, write
from common import KEY, MODEL, URL

NAME = f"dovetail/{MODEL}"
SETTINGS = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "dovetail": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": URL, "apiKey": KEY},
            "models": {
                MODEL: {
                    "reasoning": True,
                    "tool_call": True,
                    "limit": {"context": WINDOW, "output": 8192},
                    "interleaved": {"field": "reasoning_content"},
                }
            },
        }
    },
    "model": NAME,
    "small_model": NAME,
    "permission": {"edit": "allow", "bash": "allow", "external_directory": "allow"},
}

write(SCRATCH / "opencode.json", json.dumps(SETTINGS))
agent(
    lambda prompt: [binary("opencode"), "run", "--model", NAME, prompt],
    OPENCODE_DISABLE_AUTOUPDATE="1",
    OPENCODE_DISABLE_MODELS_FETCH="1",
    OPENCODE_DISABLE_LSP_DOWNLOAD="1",
    OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
)
