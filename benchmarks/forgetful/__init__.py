"""How exact memory is: what it puts back, and what it must not."""
