"""One file for each model family: a declaration, or a script where that is not enough."""
