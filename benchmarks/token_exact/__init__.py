"""How often a prompt begins with the prompt and the output of the turn before, with records and without."""
