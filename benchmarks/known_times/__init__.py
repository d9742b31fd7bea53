"""Whether `dovetail bench` measures what a server with known times does, over real sockets.

server.py     the server: first token after 50 ms, then 10 ms a token, deltas of 3 tokens
__main__.py   measures it at 1, 20 and 64 requests at once, and fails above 2 %
beside.py     aiperf, guidellm and vLLM's client on the same server
"""
