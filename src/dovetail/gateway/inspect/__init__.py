"""The page `/inspect`: the recordings of `serve --record` in a browser."""
