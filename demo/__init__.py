"""A scripted conversation with two tools through the official `openai` client. `make demo`, or `python -m demo`."""
