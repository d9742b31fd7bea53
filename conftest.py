"""How long properties are tried: in `make test` the same few examples every time, in `make fuzz` many new ones."""

from hypothesis import settings

# No deadline: how long one example takes says more about the machine than about the code. In `make test` nothing is
# drawn by chance, so that a change is judged by what it changes; what chance finds in `make fuzz` becomes an `example`.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=5000)
settings.load_profile("test")
