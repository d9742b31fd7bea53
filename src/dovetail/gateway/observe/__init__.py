"""What operators see of requests: metrics, access lines, traces, and recordings (`serve --record`)."""
