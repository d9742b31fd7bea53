"""What a JSON Schema says, whatever writes it: its references, its size, its sense, and whether a value keeps it."""
