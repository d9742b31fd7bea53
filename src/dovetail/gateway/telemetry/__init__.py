"""What operators see of requests: a report of each, from which metrics, access lines and traces are made."""
