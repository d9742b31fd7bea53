"""Kimi Code: `kimi -p` at a task, with its own tools, as Moonshot's provider or by the API that the harness names."""

from __future__ import annotations

import os

from coding_agents import HOME, WINDOW, agent, binary, write
from common import KEY, MODEL, ROOT, URL

PROVIDERS = {"chat": "kimi", "responses": "openai_responses", "messages": "anthropic"}
API = os.environ["DOVETAIL_API"]

write(HOME / "config.toml", "telemetry = false\n")
agent(
    lambda prompt: [binary("kimi"), "-p", prompt],
    sees=True,
    KIMI_CODE_HOME=str(HOME),
    KIMI_MODEL_NAME=MODEL,
    KIMI_MODEL_API_KEY=KEY,
    KIMI_MODEL_BASE_URL=ROOT if API == "messages" else URL,
    KIMI_MODEL_PROVIDER_TYPE=PROVIDERS[API],
    KIMI_MODEL_MAX_CONTEXT_SIZE=str(WINDOW),
    KIMI_CODE_NO_AUTO_UPDATE="1",
    KIMI_DISABLE_TELEMETRY="1",
)
