"""Named API keys: who holds them, what they may do, and what they have used."""
