"""kimi-cli: `kimi --print` at a task, with its own tools."""

from __future__ import annotations

from coding_agents import HOME, SCRATCH, WINDOW, agent, python_program, write
from common import KEY, MODEL, URL

write(
    HOME / ".kimi" / "config.toml",
    f"""
default_model = "{MODEL}"
[models.{MODEL}]
provider = "dovetail"
model = "{MODEL}"
max_context_size = {WINDOW}
capabilities = ["thinking"]
[providers.dovetail]
type = "kimi"
base_url = "{URL}"
api_key = "{KEY}"
""",
)
agent(
    lambda prompt: [python_program("kimi"), "--print", "--work-dir", str(SCRATCH), "-p", prompt],
    KIMI_CLI_NO_AUTO_UPDATE="1",
    KIMI_DISABLE_TELEMETRY="1",
)
