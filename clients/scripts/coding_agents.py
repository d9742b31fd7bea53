"""What the programs of the coding agents share: a scratch folder with a file, and the agent run in it to its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from common import TASK

HOME = Path("home").absolute()
SCRATCH = Path("scratch").absolute()
FILE = SCRATCH / "chapter.txt"
INSTALLED = Path(os.environ["DOVETAIL_INSTALLED"])
REQUEST = TASK["edit_request"].format(path=FILE)


def run(command: list[str], **variables: str) -> str:
    """Run an agent with nothing but these variables, an empty home and the file; returns what it printed."""
    HOME.mkdir(exist_ok=True)
    SCRATCH.mkdir(exist_ok=True)
    FILE.write_text(TASK["edit_file"])
    node = str(Path(os.environ["DOVETAIL_NODE"]).parent)
    variables |= {"HOME": str(HOME), "PATH": f"{node}:{os.environ['PATH']}", "LANG": "C.UTF-8", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=SCRATCH, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
    return done.stdout
