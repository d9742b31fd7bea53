"""A client of OpenAI-compatible endpoints, and statistics: what `dovetail verify` and `dovetail bench` share.

transport.py   HTTP to one endpoint; the key is known there alone
endpoint.py    requests to one endpoint: bounded, repeated when it says so, refused as `NotTested`
answer.py, stream.py   answers as plain data, with every fault of their shape
statistics.py  intervals and tests
probe.py       a command for containers: is the server healthy, does it answer a call with accepted drafts
"""
