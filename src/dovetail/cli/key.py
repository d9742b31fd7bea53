"""`dovetail key new NAME`: makes an API key. Its entry goes to standard output, and the key itself to standard error.

So `dovetail key new alice >> keys.yaml` adds the entry to a file and shows the key once.
"""

from __future__ import annotations

import argparse
import sys

from dovetail.gateway.limits.keys import new_key
from dovetail.server.key_file import entry_of


def run(arguments: argparse.Namespace) -> None:
    key = new_key()
    entry = entry_of(arguments.name, key)
    print(f"the key of {arguments.name}, shown this once:\n{key}\n", file=sys.stderr)
    if sys.stdout.isatty():
        print("its entry for the file of `serve --api-keys`:", file=sys.stderr)
    sys.stdout.write(entry)
