"""The tokens of finished answers as opaque texts that clients return, and what shows that a message is unchanged."""
