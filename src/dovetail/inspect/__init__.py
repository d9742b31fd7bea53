"""What happened to one request: the recordings of `serve --record` in words, and on the page `/inspect`."""
