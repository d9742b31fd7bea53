"""Where the gateway keeps what outlives a request: entries of owners, and the use of keys."""
