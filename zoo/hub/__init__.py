"""Checkpoints of others, in and out: besides zoo.checkpoint the only place that knows parameter names."""
