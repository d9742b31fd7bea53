"""What a model may answer: the grammar of each family's answers."""
