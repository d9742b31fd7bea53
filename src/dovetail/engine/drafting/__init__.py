"""Ways to guess the next tokens; the contract is in base.py."""
