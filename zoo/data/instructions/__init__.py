"""Instruction tuning: prompts with a response, and conversations, of which the answers are learned."""
