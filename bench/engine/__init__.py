"""The embedded engine beside transformers and vLLM: `python -m bench.engine --help`."""
