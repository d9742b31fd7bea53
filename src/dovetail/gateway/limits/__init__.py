"""What keeps requests within bounds: named keys and their limits, bodies, the queue, and the end of the server."""
