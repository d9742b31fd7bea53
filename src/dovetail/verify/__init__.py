"""`dovetail verify`: whether an endpoint answers as its model should, and which step failed. Speaks HTTP only.

suites/        what is asked, and what is wrong with an answer
blame.py       which step failed: prompt, draft, reader, schema or model
runner.py      runs the cases of suites, at one endpoint or two side by side
report/        the same result as JSON, on a terminal, as JUnit XML, as one HTML page
"""
