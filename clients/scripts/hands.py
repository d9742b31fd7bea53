"""The edit task for frameworks: three tools as Python functions on a file of its own, which any agent is given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from common import TASK

FILE = Path("chapter.txt").absolute()
REQUEST = TASK["edit_request"].format(path=FILE, tools=os.environ.get("DOVETAIL_TOOLS"))
FILE.write_text(TASK["edit_file"])


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    before = Path(path).read_text()
    if before.count(old) != 1:
        return "The text is not there once."
    Path(path).write_text(before.replace(old, new))
    return "Done."


def run_command(command: str) -> str:
    """Run a command of the shell."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr
