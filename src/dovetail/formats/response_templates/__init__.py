"""Hugging Face's `response_template`: a declaration of a model's answers in its tokenizer_config.json."""
