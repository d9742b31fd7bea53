"""Real clients against a served Dovetail: `python -m clients`, which is `make test-clients`."""
