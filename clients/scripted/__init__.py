"""A model whose answers are known, behind Dovetail's own gateway."""
