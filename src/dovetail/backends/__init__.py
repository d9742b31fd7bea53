"""The implementations of the `Engine` protocol of completion.py: embedded, vllm and remote."""
