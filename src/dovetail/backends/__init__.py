"""Engines behind the `Engine` protocol of completion.py, one file each."""
