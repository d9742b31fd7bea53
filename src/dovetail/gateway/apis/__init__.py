"""One translation per HTTP API: a request's body into a turn, and the turn's steps into the response."""
