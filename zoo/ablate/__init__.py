"""Ablations: many runs of one question, tuned alike, compared with a verdict."""
