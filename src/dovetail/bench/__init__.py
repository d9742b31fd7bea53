"""`dovetail bench`: speed and acceptance of an endpoint over context and concurrency. Speaks HTTP only.

plan.py      what is measured: the matrix, waves of requests, variants of drafting
prompts.py   prompts of a length in tokens, each with a beginning of its own
timing.py    the times of one request, from the bytes of its stream
target.py    an endpoint: what it accepts, and one timed request
runner.py    runs the cells, variants in turns
figures.py   the samples of a cell as figures with intervals
report.py    the table
html.py      the page
"""
