"""qwen-code: `qwen -p` at a task, with its own tools."""

from __future__ import annotations

import json

from coding_agents import HOME, WINDOW, agent, binary, write
from common import KEY, MODEL, URL

SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    "security": {"auth": {"selectedType": "openai"}},
    "model": {"name": MODEL, "generationConfig": {"contextWindowSize": WINDOW}},
}

write(HOME / ".qwen" / "settings.json", json.dumps(SETTINGS))
agent(
    lambda prompt: [binary("qwen"), "-p", prompt, "--yolo"],
    OPENAI_API_KEY=KEY,
    OPENAI_BASE_URL=URL,
    OPENAI_MODEL=MODEL,
    QWEN_TELEMETRY_ENABLED="false",
)
