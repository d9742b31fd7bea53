"""What all families share when they write prompts: repairs of the history, and the tokens of earlier answers."""
