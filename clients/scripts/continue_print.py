"""Continue: `cn -p` at a task, with its own tools."""

from __future__ import annotations

from coding_agents import HOME, WINDOW, agent, binary, write
from common import KEY, MODEL, URL

SETTINGS = HOME / ".continue" / "config.yaml"

write(
    SETTINGS,
    f"""
name: dovetail
version: 0.0.1
schema: v1
models:
  - name: {MODEL}
    provider: openai
    model: {MODEL}
    apiBase: {URL}
    apiKey: {KEY}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {WINDOW}
      maxTokens: 4096
""",
)
agent(
    lambda prompt: [binary("cn"), "-p", prompt, "--config", str(SETTINGS), "--auto"],
    CONTINUE_TELEMETRY_ENABLED="0",
    CONTINUE_CLI_ENABLE_TELEMETRY="0",
    DO_NOT_TRACK="1",
)
