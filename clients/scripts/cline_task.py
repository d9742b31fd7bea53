"""cline: its command line at a task, with its own tools."""

from __future__ import annotations

from coding_agents import agent, binary, run
from common import KEY, MODEL, URL

VARIABLES = {"CLINE_TELEMETRY_DISABLED": "1", "DO_NOT_TRACK": "1", "CLINE_NO_AUTO_UPDATE": "1"}

run([binary("cline"), "auth", "-p", "openai", "-k", KEY, "-m", MODEL, "-b", URL], **VARIABLES)
agent(lambda prompt: [binary("cline"), prompt], **VARIABLES)
