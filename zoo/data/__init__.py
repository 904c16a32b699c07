"""Data sets: corpora, tokenizers, token files, and batches that are pure functions of (seed, step, rank)."""
