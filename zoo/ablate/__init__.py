"""Ablations: many runs that answer one question, tuned by one rule, and compared with a verdict."""
