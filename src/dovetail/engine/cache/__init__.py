"""Where cached keys and values live: blocks, and who holds them."""
