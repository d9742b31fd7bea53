"""Container images of Dovetail: what goes in, how one is built, and whether a built one is what it says."""
