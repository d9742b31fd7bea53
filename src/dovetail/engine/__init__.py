"""The embedded engine: token ids in, token ids out. The only folder that imports torch."""
