"""Where drafting pays, and whether the gate finds it: `python -m bench.speculation --help`."""
