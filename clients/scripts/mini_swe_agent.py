"""mini-swe-agent: `mini` at a task. Its one tool runs commands."""

from __future__ import annotations

from coding_agents import agent, python_program
from common import KEY, MODEL, URL

agent(
    lambda prompt: [python_program("mini"), "-m", f"openai/{MODEL}", "-y", "--exit-immediately", "-t", prompt],
    MSWEA_CONFIGURED="true",
    MSWEA_COST_TRACKING="ignore_errors",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENAI_API_KEY=KEY,
    OPENAI_API_BASE=URL,
)
