"""Grammars that clients write for the input of custom tools: read, bounded, and made into nodes."""
