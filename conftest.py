"""How long properties are tried: a little in `make test`, much longer in `make fuzz`."""

from hypothesis import settings

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("test", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=5000)
settings.load_profile("test")
