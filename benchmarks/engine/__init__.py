"""The embedded engine beside transformers and vLLM: `python -m benchmarks.engine --help`."""
