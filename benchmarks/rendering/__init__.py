"""Dovetail's renderers beside templates and other engines' encoders: `python -m benchmarks.rendering --help`."""
