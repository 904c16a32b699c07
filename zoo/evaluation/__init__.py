"""Evaluation of trained models: perplexity of texts, and the tasks of lm-evaluation-harness."""
