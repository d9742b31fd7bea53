"""Several ranks that compute one model: what they exchange, and what each has of the weights and the cache."""
