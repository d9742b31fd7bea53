"""HTTP in front of the APIs: middleware, bodies, endpoints, streams, errors, and the pages about the server."""
