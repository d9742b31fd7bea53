"""claude-code: `claude -p` at a task, with its own tools."""

from __future__ import annotations

from coding_agents import FILE, INSTALLED, REQUEST, run
from common import KEY, MODEL, ROOT, feature, main


@feature
def report():
    claude = str(INSTALLED / "node_modules" / ".bin" / "claude")
    command = [claude, "-p", REQUEST, "--permission-mode", "acceptEdits", "--allowedTools", "Read", "Edit", "Bash"]
    variables = {
        "ANTHROPIC_BASE_URL": ROOT,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its small model for titles and summaries.
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    }
    return run(command, **variables).strip()


@feature
def edited():
    return FILE.read_text()


main()
