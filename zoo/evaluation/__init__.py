"""Trained models in use: generated texts, predicted classes, perplexity, tasks of lm-evaluation-harness."""
