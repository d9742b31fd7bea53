"""What a constraint costs and what it keeps: compile, masks, memory, coverage; beside xgrammar and vLLM."""
