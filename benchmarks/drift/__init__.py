"""Dovetail's readers and other engines' parsers on what models write off the path: see `--help`."""
