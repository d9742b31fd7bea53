"""GGUF files, read as checkpoints: the header, and the folder of small files that is made of it."""
