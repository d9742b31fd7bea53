"""Real clients against a served Dovetail: `python -m clients`."""
