"""How long properties are tried, by Hypothesis profile.

`quick` is `make test`, `test` is `make test-all`: the same examples every time, so that a change is judged by what it
changes. `fuzz` is `make fuzz`: many new examples; what chance finds becomes an `example`.
"""

from hypothesis import settings

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=5000)
settings.load_profile("test")
