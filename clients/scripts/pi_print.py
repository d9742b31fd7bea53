"""pi: `pi -p` at a task, with its own tools."""

from __future__ import annotations

import json

from coding_agents import HOME, WINDOW, agent, binary, write
from common import KEY, MODEL, URL

PROVIDER = {
    "baseUrl": URL,
    "api": "openai-completions",
    "apiKey": KEY,
    "models": [
        {
            "id": MODEL,
            "name": MODEL,
            "reasoning": True,
            "input": ["text"],
            "contextWindow": WINDOW,
            "maxTokens": 8192,
            "compat": {"thinkingFormat": "qwen-chat-template"},  # for models that are served by oneself
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
    ],
}

write(HOME / ".pi" / "agent" / "models.json", json.dumps({"providers": {"dovetail": PROVIDER}}))
agent(
    lambda prompt: [binary("pi"), "--provider", "dovetail", "--model", MODEL, "-p", prompt],
    PI_OFFLINE="1",
    PI_SKIP_VERSION_CHECK="1",
    PI_TELEMETRY="0",
)
