"""Families as declarations: their reader, writer and grammar follow from a few lines."""
