"""How long properties are tried, by Hypothesis profile, and what the garbage collector does between tests.

`quick` is `make test` and `.ci/run`, `test` is `make test-slow`, `proof` is for the proofs of CONTRIBUTING.md: the same
examples every time, so that a change is judged by what it changes. `fuzz`: many new examples; what chance finds becomes
an `example`.
"""

import gc

import pytest
from hypothesis import settings

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("proof", deadline=None, derandomize=True, max_examples=500)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=5000)
settings.load_profile("test")

# Collecting 14,000 tests makes millions of objects that live to the end. The garbage collector would go through them
# again and again: without it collecting takes a quarter less time; once they are frozen the tests take a tenth less.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
