"""Paged attention, one file per kind of KV cache."""
