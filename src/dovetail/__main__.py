"""`python -m dovetail` is the `dovetail` command."""

import sys

from dovetail.cli import main

sys.exit(main())
