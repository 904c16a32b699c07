"""Training: one loop, and what it measures, writes and survives."""
