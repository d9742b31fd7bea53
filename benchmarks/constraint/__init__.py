"""What a constraint costs and enforces: compile times, masks, memory and coverage, beside xgrammar and vLLM."""
