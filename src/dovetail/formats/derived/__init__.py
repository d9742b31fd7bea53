"""The format of any other model, from its own chat template, by differencing."""
