"""aider: `aider --message` at a task. It has no tools: it edits by blocks in the model's text."""

from __future__ import annotations

from coding_agents import FILE, agent, python_program
from common import KEY, MODEL, TASK, URL

FLAGS = """--yes-always --no-git --no-gitignore --no-analytics --no-check-update --no-show-model-warnings
--no-auto-lint --no-pretty --edit-format diff""".split()

agent(
    lambda prompt: [python_program("aider"), "--model", f"openai/{MODEL}", *FLAGS, FILE.name, "--message", prompt],
    TASK["blocks_request"].format(path=FILE),
    OPENAI_API_KEY=KEY,
    OPENAI_API_BASE=URL,
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)
