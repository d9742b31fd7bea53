"""What is loaded inside another engine: one folder per engine."""
