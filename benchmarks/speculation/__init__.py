"""Where drafting pays, and whether the gate finds it: `python -m benchmarks.speculation --help`."""
