"""Runs: their configuration, the model and optimizer that it describes, and what is kept with a model."""
