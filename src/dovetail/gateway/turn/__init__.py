"""One turn: a request's prompt and grammar, its choices on the engine, and their steps, the same for every API."""
