"""`python -m demo.picture FILE.svg`: what the demo prints, as a picture of a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

from rich.console import Console
from rich.text import Text

_COLUMNS = 92


def main(path: str) -> None:
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(_COLUMNS)}
    command = [sys.executable, "-m", "demo"]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, highlight=False)
        console.print(Text.from_ansi(printed.replace("\r", "").strip()))
        console.save_svg(path, title="make demo")


if __name__ == "__main__":
    main(sys.argv[1])
