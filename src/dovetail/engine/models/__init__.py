"""The architectures the engine runs; the contract is in base.py."""
