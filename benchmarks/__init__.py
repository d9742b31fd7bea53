"""What is measured, and how: `python -m benchmarks --help`."""
