"""claude-code: `claude -p` at a task, with its own tools."""

from __future__ import annotations

from coding_agents import WINDOW, agent, binary
from common import KEY, MODEL, ROOT

FLAGS = ("--permission-mode", "acceptEdits", "--allowedTools", "Read", "Edit", "Bash")

agent(
    lambda prompt: [binary("claude"), "-p", prompt, *FLAGS],
    sees=True,
    ANTHROPIC_BASE_URL=ROOT,
    ANTHROPIC_AUTH_TOKEN=KEY,
    ANTHROPIC_MODEL=MODEL,
    CLAUDE_CODE_MAX_CONTEXT_TOKENS=str(WINDOW),
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    # Its small model for titles and summaries.
    ANTHROPIC_DEFAULT_HAIKU_MODEL=MODEL,
)
