"""Dovetail inside other engines beside what these bring themselves."""
