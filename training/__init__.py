"""How the demo pair is made: conversations, tokenizer, target, drafter, evaluation. `python -m training --help`."""
