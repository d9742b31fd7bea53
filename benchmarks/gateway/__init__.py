"""What the gateway costs per token and per request, beside other front ends: `python -m benchmarks.gateway`."""
