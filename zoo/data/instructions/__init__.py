"""Prompts with an answer, and conversations, as a data set."""
