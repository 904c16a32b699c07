"""Instruction tuning on prompts with responses and on conversations, whose answers are learned."""
