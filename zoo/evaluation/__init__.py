"""Trained models in use: texts that they generate, classes that they predict, perplexity, and the tasks of
lm-evaluation-harness.
"""
