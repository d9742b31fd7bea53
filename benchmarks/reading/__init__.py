"""Dovetail's readers beside other engines' own streaming parsers: `python -m benchmarks.reading --help`."""
