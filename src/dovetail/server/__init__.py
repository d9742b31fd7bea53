"""The HTTP server around the gateway: sockets, connections, TLS, keys of clients, logs, traces, the end on a signal."""
